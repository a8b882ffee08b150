# SPDX-License-Identifier: Apache-2.0
"""beside_torch.py with stand-ins for takt-bench and for a Python with torch: which ways run in which order, and what is printed.
    python3 -B -m unittest beside_torch_test"""
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest

import beside_torch
import side_by_side

HERE = pathlib.Path(__file__).resolve().parent
# Each writes down that it ran, and prints what the real one prints. PyTorch's fast way is twice as fast as its slow one; Takt gets faster.
TAKT = """#!{python} -B
import json, pathlib
log = pathlib.Path("{log}")
rounds = log.read_text().count("takt") if log.exists() else 0
log.open("a").write("takt\\n")
print(json.dumps({{"tokens_per_second": 300.0 + 100 * rounds, "model_flops": 4e6, "attention_flops": 1e5, "peak_bytes": 2**30}}))
"""
TORCH = """#!{python} -B
import json, pathlib, sys
names = sys.argv[sys.argv.index("--variants") + 1 : sys.argv.index("-o")]
pathlib.Path("{log}").open("a").write("torch " + " ".join(names) + "\\n")
every = [{{"variant": "slow", "tokens_per_second": 50.0}}, {{"variant": "fast", "tokens_per_second": 100.0, "peak_bytes": 2**31}}]
variants = [v for v in every if "*" in names or v["variant"] in names]
print("a line before")
print(json.dumps({{"torch": "9.9", "device": "cpu", "best": variants[-1], "variants": variants, "failures": {{"odd": "it cannot"}},
                  "libraries": {{"blas": "mkl", "built_with": ["built"], "products": {{"float32": "MKL SGEMM"}}, "mkl": "MKL 1",
                                "onednn_isa": "AVX"}}}}))
"""
# Stands for a coordinator, too. Its steps take half a second, but those of zb-v never end well.
CLI = """#!{python} -B
import json, pathlib, sys
log, arguments = pathlib.Path("{log}"), sys.argv[1:]
if arguments[0] == "local":
    state = pathlib.Path(arguments[arguments.index("--state") + 1])
    log.open("a").write(" ".join(arguments[:2]) + "\\n")
    state.mkdir(exist_ok=True)
    (state / "address").write_text("unix:here")
elif "submit" in arguments or "profile" in arguments:
    job = json.loads(pathlib.Path(arguments[-1]).read_text())
    assert (pathlib.Path(arguments[-1]).parent / "tokens.bin").stat().st_size == 4 * (job["steps"] * 8 * 64 + 1)
    way = job["parallelism"]["schedule"] + "/" + job["parallelism"]["transport"]
    log.open("a").write(arguments[-2] + " " + way + "\\n")
    log.with_name(job["name"]).write_text(way)
elif "watch" in arguments:
    way = log.with_name(arguments[-1]).read_text()
    if way.startswith("zb-v"):
        sys.exit("error: a rank failed")
    for step in range(4):
        print(json.dumps({{"step": step + 1, "loss": 6.0, "grad_norm": 1.0, "schedule": way, "step_seconds": 9 if step == 0 else 0.5}}))
"""


class BesideTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="takt-beside-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        for name, text in (("takt-bench", TAKT), ("takt", CLI), ("python", TORCH)):
            (self.folder / name).write_text(text.format(python=sys.executable, log=self.log))
            (self.folder / name).chmod(0o755)

    def compare(self, *arguments):
        command = [sys.executable, "-B", HERE / "beside_torch.py", "--takt", self.folder / "takt-bench", "--python", self.folder / "python"]
        return subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout

    def test_rounds_change_the_order_and_repeat_only_the_best(self):
        row = json.loads(self.compare("--device", "cpu", "--precision", "f32", "--threads", "1", "-o", "json"))["rows"][0]
        self.assertEqual(self.log.read_text().splitlines(), ["torch *", "takt", "takt", "torch fast", "torch fast", "takt"])
        self.assertEqual(row["ratios"], [3.0, 4.0, 5.0])
        self.assertEqual((row["ratio"], row["torch_variant"]), (4.0, "fast"))
        self.assertNotIn("mfu_causal", row["takt"])

    def test_cpu_table_names_libraries_and_failures(self):
        text = self.compare("--device", "cpu", "--precision", "f32", "bf16", "--threads", "1", "2")
        self.assertIn("float32 by MKL SGEMM", text)
        self.assertIn("torch odd failed: it cannot", text)
        self.assertEqual(sum(line.startswith("tiny") for line in text.splitlines()), 4)
        self.assertNotIn("MFU", text)

    def test_pipelines_are_jobs_of_one_cluster_that_ends(self):
        arguments = ["--device", "cpu", "--precision", "f32", "--pipeline", "2", "--rounds", "2"]
        text = self.compare(*arguments, "--takt-variants", "1f1b/tcp", "zb-v/*")
        self.assertEqual(self.log.read_text().splitlines(),
                         ["local up", "profile 1f1b/tcp", "torch *", "submit 1f1b/tcp", "submit zb-v/tcp", "submit zb-v/shm", "submit 1f1b/tcp",
                          "torch fast", "local down"])
        self.assertIn("10.240", text)  # 8 x 64 tokens in half a second, beside 100
        self.assertIn("takt zb-v/shm failed: takt -o json", text)
        self.assertIn("a rank failed", text)

    def test_gpu_table_has_utilization_and_memory(self):
        text = self.compare("--rows", "tiny", "--peak", "1e6")
        self.assertIn("MFU causal %", text)
        self.assertEqual(text.splitlines()[-1].split(), ["tiny", "300", "100", "3.000", "468.8", "156.2", "480.5", "160.2", "1.00", "2.00", "fast"])


class Rates(unittest.TestCase):
    def test_best_way_ran_in_every_round(self):
        def report(**rates):
            return {"variants": [{"variant": name, "tokens_per_second": rate} for name, rate in rates.items()]}

        self.assertEqual(beside_torch.contenders(report(a=91, b=100, c=89)), ["a", "b"])
        self.assertEqual(beside_torch.rates([report(a=91, b=100, c=89), report(a=95, b=90)]), ("b", [100, 90]))
        with self.assertRaises(side_by_side.Failed):
            beside_torch.rates([report(a=1), report(b=1)])


class SideBySide(unittest.TestCase):
    def run_python(self, *sources, **options):
        return side_by_side.run([[sys.executable, "-c", source] for source in sources], **options)

    def test_result_is_the_last_line_of_the_first(self):
        self.assertEqual(self.run_python("print('x'); print('{\"a\": 1}')", "print('{}')"), {"a": 1})

    def test_failure_of_one_ends_all_with_their_children(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "child"
            parent = (f"import os, pathlib, signal, subprocess; child = subprocess.Popen(['sleep', '1000']); file = pathlib.Path({str(file)!r}); "
                      f"file.with_suffix('.new').write_text(str(child.pid)); file.with_suffix('.new').rename(file); signal.pause()")
            fails = (f"import pathlib, sys, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)\n"
                     f"print('why', file=sys.stderr); sys.exit(3)")
            with self.assertRaisesRegex(side_by_side.Failed, "exit status 3: why"):
                self.run_python(parent, fails, quiet=True)
            self.assert_ends(int(file.read_text()))

    def test_what_takes_too_long_is_ended(self):
        with self.assertRaisesRegex(side_by_side.Failed, "did not end within 0.2 s"):
            self.run_python("import signal; signal.pause()", seconds=0.2)

    def assert_ends(self, pid):
        """The kernel gives an orphan that was killed to a process that reaps it."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        with os.fdopen(descriptor) as file:
            self.assertTrue(select.select([file], [], [], 20)[0], "the child still runs")


if __name__ == "__main__":
    unittest.main()
