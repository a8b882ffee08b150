# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/takt.sbatch on this machine, with stand-ins for Slurm's commands (stand_ins/). slurm.sh does the same under a real Slurm.
  python3 -B -m unittest slurm_script_test      BIN: the programs' directory"""
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = SOURCE / "tests/deploy/stand_ins"
PATIENCE_SECONDS = 120
STEPS = 1500
JOB = """name: {name}
model: {{family: gpt2, layers: 4, hidden: 64, heads: 4, context: 64, vocab: 256}}
data: {{train: {{path: {data}, format: bytes}}, shuffle: true}}
batch: {{global: 8, microbatch: 2}}
optimizer: {{adamw: {{learning_rate: 1.0e-3}}}}
steps: {steps}
parallelism: {{pipeline: 2, data: 1, schedule: 1f1b}}
checkpoint: {{directory: checkpoints-{name}, every_steps: 100}}
seed: 7
"""


def job_number():
    """One whose port, as the script chooses it, is free."""
    while True:
        number = random.randrange(20000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", 10000 + number))
                return number
            except OSError:
                continue


class SlurmScript(unittest.TestCase):
    def setUp(self):
        # A short path, which no socket's name exceeds.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="takt-slurm-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs, self.state = self.folder / "jobs", self.folder / "state"
        self.jobs.mkdir()
        self.state.mkdir()
        shutil.copy(SOURCE / "deploy/examples/tiny.txt", self.jobs)

    def start(self, name, number, restarts=0, data="tiny.txt"):
        (self.jobs / f"{name}.yaml").write_text(JOB.format(name=name, data=data, steps=STEPS))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TAKT_", "SLURM_"))}
        environment |= {"PATH": f"{os.environ['BIN']}:{STAND_INS}:{os.environ['PATH']}:/usr/sbin:/sbin", "FAKE_SLURM": str(self.folder),
                        "TAKT_INTERFACE": "lo", "TAKT_STATE": str(self.state), "SLURM_JOB_ID": str(number), "SLURM_NTASKS": "2",
                        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": str(restarts)}
        with open(self.jobs / f"{name}.log", "a") as log:
            script = subprocess.Popen(["bash", SOURCE / "deploy/slurm/takt.sbatch", f"{name}.yaml"], cwd=self.jobs, env=environment,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.addCleanup(self.kill, script)
        return script

    def kill(self, script):
        """Ends what a test that failed left running."""
        try:
            os.killpg(script.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        script.wait()

    def processes(self):
        """The command lines that name the folder of this test, as those of all daemons do."""
        lines = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(file.read_bytes().decode(errors="replace"))
            except OSError:
                pass  # it has just ended
        return [line for line in lines if str(self.folder) in line]

    def log(self, name):
        return (self.jobs / f"{name}.log").read_text()

    def assert_ends(self, script, name, code):
        self.assertEqual(script.wait(PATIENCE_SECONDS), code, self.log(name))
        self.assertEqual(list(self.jobs.glob("takt-*/run-*/certs")), [], "private keys were left behind")
        self.assertEqual(list(self.state.iterdir()), [], "the coordinator's state was left behind")

    def await_checkpoint(self, name):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not list(self.jobs.glob(f"checkpoints-{name}/step-*/manifest.json")):
            self.assertLess(time.monotonic(), deadline, self.log(name))
            time.sleep(0.05)

    def weights(self, name):
        files = sorted(self.jobs.glob(f"checkpoints-{name}/step-{STEPS:08}/model-*.safetensors"))
        self.assertTrue(files, self.log(name))
        return [(file.name, file.read_bytes()) for file in files]

    def test_a_job_that_is_paused_and_requeued_ends_with_the_same_weights(self):
        self.assert_ends(self.start("calm", job_number()), "calm", 0)

        number = job_number()
        script = self.start("requeued", number)
        self.await_checkpoint("requeued")
        script.send_signal(signal.SIGUSR1)  # as Slurm does before the time limit
        self.assert_ends(script, "requeued", 0)
        self.assertEqual((self.folder / "requeued").read_text(), f"{number}\n")
        self.assertIn("paused; back to Slurm's queue", self.log("requeued"))
        self.assertNotIn("resumed after step", self.log("requeued"))

        self.assert_ends(self.start("requeued", number, restarts=1), "requeued", 0)
        self.assertIn("resumed after step: ", self.log("requeued"))
        self.assertEqual(self.weights("requeued"), self.weights("calm"))

    def test_the_verdict_of_the_job_is_the_exit_code(self):
        self.assert_ends(self.start("wrong", job_number(), data="missing.txt"), "wrong", 2)

    def test_scancel_ends_all_processes(self):
        script = self.start("cancelled", job_number())
        self.await_checkpoint("cancelled")
        script.terminate()
        self.assert_ends(script, "cancelled", 143)
        self.assertEqual(self.processes(), [])


if __name__ == "__main__":
    unittest.main()
