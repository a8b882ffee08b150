// SPDX-License-Identifier: Apache-2.0
// One function a command, each in the file of its name: adds the command to the tree of `app`.
#pragma once

#include "cli/context.h"

namespace takt::cli {

void AddLocal(CLI::App& app, Context& context);  // local run, local up, local down
void AddLocalRun(CLI::App& local, Context& context);
void AddLocalUp(CLI::App& local, Context& context);
void AddLocalDown(CLI::App& local, Context& context);
void AddSubmit(CLI::App& app, Context& context);
void AddJobs(CLI::App& app, Context& context);
void AddJob(CLI::App& app, Context& context);
void AddWatch(CLI::App& app, Context& context);
void AddWait(CLI::App& app, Context& context);
void AddCancel(CLI::App& app, Context& context);
void AddPause(CLI::App& app, Context& context);  // pause, resume
void AddDelete(CLI::App& app, Context& context);
void AddLogs(CLI::App& app, Context& context);
void AddTrace(CLI::App& app, Context& context);
void AddExplain(CLI::App& app, Context& context);
void AddWorkers(CLI::App& app, Context& context);
void AddDrain(CLI::App& app, Context& context);  // drain, undrain
void AddData(CLI::App& app, Context& context);   // data info
void AddDataInfo(CLI::App& data, Context& context);
void AddCheckpoint(CLI::App& app, Context& context);
void AddCheckpointList(CLI::App& checkpoint, Context& context);
void AddCheckpointVerify(CLI::App& checkpoint, Context& context);
void AddCheckpointExport(CLI::App& checkpoint, Context& context);
void AddSchedule(CLI::App& app, Context& context);
void AddScheduleList(CLI::App& schedule, Context& context);
void AddScheduleShow(CLI::App& schedule, Context& context);
void AddScheduleSimulate(CLI::App& schedule, Context& context);
void AddScheduleCompare(CLI::App& schedule, Context& context);
void AddScheduleDocs(CLI::App& schedule, Context& context);
void AddScheduleVerify(CLI::App& schedule, Context& context);
void AddCerts(CLI::App& app, Context& context);        // certs init, certs issue
void AddCertsJoin(CLI::App& certs, Context& context);  // certs token, certs join
void AddCompletion(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);

}  // namespace takt::cli
