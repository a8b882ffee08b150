# SPDX-License-Identifier: Apache-2.0
"""The matrix reaches what it promises, and a comparison sees every kind of difference."""
import copy
import unittest

import comparison
import matrix

RESULT = {
    "runs": [{"1": {"loss": "5.5412", "grad_norm": "1.25"}, "2": {"loss": "5.1", "grad_norm": "1.5"}}],
    "checkpoint": {"step": 2, "windows": 16, "plan_hash": "ab", "manifest": {"model": "01"}, "sha256": {"model": "02"}},
}


class MatrixTest(unittest.TestCase):
    def setUp(self):
        self.jobs = matrix.jobs()

    def values(self, *path):
        found = set()
        for job in self.jobs:
            value = job.spec
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            found.add(str(value))
        return found

    def test_names_are_unique(self):
        self.assertEqual(len(self.jobs), len({job.name for job in self.jobs}))

    def test_reaches_all_that_may_change_a_result(self):
        self.assertGreaterEqual(len(self.jobs), 60)
        self.assertEqual(self.values("parallelism", "pipeline"), {"1", "2", "3", "4"})
        self.assertEqual(self.values("parallelism", "data"), {"1", "2", "3"})
        self.assertLessEqual({"gpt2", "llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "emulated"}, self.values("model", "family"))
        self.assertLessEqual({"shm", "gloo"}, self.values("parallelism", "transport"))
        self.assertLessEqual({"selective", "full"}, self.values("parallelism", "recompute"))
        self.assertIn("bf16", self.values("precision"))
        self.assertIn("False", self.values("exact"))
        self.assertTrue(any(job.resumed for job in self.jobs))

    def test_a_resumed_job_keeps_what_a_checkpoint_requires(self):
        for job in self.jobs:
            for spec in job.resumed:
                for key in ("model", "data", "batch", "optimizer", "seed", "checkpoint"):
                    self.assertEqual(spec.get(key), job.spec.get(key), job.name)

    def test_an_unknown_option_is_refused(self):
        with self.assertRaises(ValueError):
            matrix.job(matrix.GPT2, pipelines=2)


class ComparisonTest(unittest.TestCase):
    def differences(self, change):
        after = {"job": copy.deepcopy(RESULT)}
        change(after)
        return comparison.differences({"job": RESULT}, after)

    def test_equal_records_have_no_difference(self):
        self.assertEqual(self.differences(lambda after: None), [])

    def test_names_the_job_the_step_and_both_values(self):
        def change(after):
            after["job"]["runs"][0]["2"]["loss"] = "5.1000000000000005"

        self.assertEqual(self.differences(change), ["job: runs 0 2 loss: 5.1 and 5.1000000000000005"])

    def test_sees_what_is_missing_or_more(self):
        self.assertEqual(len(self.differences(lambda after: after.pop("job"))), 1)
        self.assertEqual(len(self.differences(lambda after: after.update(other=RESULT))), 1)
        self.assertEqual(len(self.differences(lambda after: after["job"]["runs"][0].pop("2"))), 2)
        self.assertEqual(len(self.differences(lambda after: after["job"]["checkpoint"]["sha256"].update(more="03"))), 1)

    def test_two_failures_are_not_equal(self):
        failed = {"job": {"error": "exit status 1"}}
        self.assertEqual(len(comparison.differences(failed, failed)), 1)

    def test_another_plan_is_a_note(self):
        after = {"job": copy.deepcopy(RESULT)}
        after["job"]["checkpoint"]["plan_hash"] = "cd"
        self.assertEqual(comparison.differences({"job": RESULT}, after), [])
        self.assertEqual(len(comparison.notes({"job": RESULT}, after)), 1)


if __name__ == "__main__":
    unittest.main()
