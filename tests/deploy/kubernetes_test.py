# SPDX-License-Identifier: Apache-2.0
"""Every overlay of deploy/kubernetes builds, refers to nothing that is not there, and its settings are settings of the programs.
  python3 -B -m unittest kubernetes_test      BIN: the programs' directory. Skips, aloud, without kubectl; without
                                              python3-kubernetes, the schemas of Kubernetes' own kinds."""
import copy
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import manifests
import pods
import schemas
import yaml

BIN = pathlib.Path(os.environ.get("BIN", manifests.ROOT / "build" / "release" / "bin"))


def mounts(workload):
    return [mount["mountPath"] for c in manifests.containers(workload) for mount in c["volumeMounts"]]


def program(workload):
    return manifests.containers(workload)[0]["args"][0]


def ask(program_name, settings_text):
    """What a program answers to these settings: exit code and text. Code 2 means that they are wrong, 1 that no daemon runs with them."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(settings_text)
        file.flush()
        answer = subprocess.run([BIN / program_name, "--settings", file.name, "--health"], capture_output=True, text=True)
    return answer.returncode, answer.stderr


@unittest.skipUnless(shutil.which("kubectl"), "SKIPPED: needs kubectl")
class Overlays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.overlays = {overlay: manifests.build(overlay) for overlay in manifests.OVERLAYS}

    def each_workload(self):
        return [(objects, workload) for objects in self.overlays.values() for workload in manifests.workloads(objects)]

    def test_references_lead_somewhere(self):
        for overlay, objects in self.overlays.items():
            self.assertEqual(list(manifests.reference_faults(objects)), [], overlay)

    def test_pods_are_restricted(self):
        for overlay, objects in self.overlays.items():
            self.assertEqual(list(manifests.security_faults(objects)), [], overlay)

    def test_the_client_fits_the_base(self):
        objects = self.overlays["base"] + manifests.client()
        self.assertEqual(list(manifests.reference_faults(objects)) + list(manifests.security_faults(objects)), [])

    def test_the_job_fits_the_base_and_the_client(self):
        objects = self.overlays["base"] + manifests.client() + manifests.job()
        self.assertEqual(list(manifests.reference_faults(objects)) + list(manifests.security_faults(objects)), [])
        job, = manifests.job()
        policy = next(o for o in manifests.client() if o["kind"] == "NetworkPolicy")
        self.assertTrue(manifests.selects(policy["spec"]["podSelector"], job))
        self.assertEqual(manifests.containers(job)[0]["env"], manifests.containers(manifests.client()[0])[0]["env"])

    def test_everything_is_in_one_namespace(self):
        for objects in self.overlays.values():
            namespaces = {o["metadata"].get("namespace") for o in objects if o["kind"] not in ("Namespace", "PriorityClass")}
            self.assertEqual(namespaces, manifests.names(objects, "Namespace"))

    def test_settings_are_settings_of_the_program(self):
        for objects, workload in self.each_workload():
            code, text = ask(program(workload), manifests.settings(objects, workload)[1])
            self.assertEqual(code, 1, text)

    def test_environment_is_known_to_the_program(self):
        for _, workload in self.each_workload():
            help_text = subprocess.run([BIN / program(workload), "--help"], capture_output=True, text=True).stdout
            known = set(re.findall(r"Env:(\w+)", help_text))
            used = {variable["name"] for c in manifests.containers(workload) for variable in c.get("env", [])}
            self.assertEqual(used - known, set())

    def test_settings_agree_with_the_pod(self):
        for objects, workload in self.each_workload():
            values = yaml.safe_load(manifests.settings(objects, workload)[1])
            ports = {p["name"]: p["containerPort"] for c in manifests.containers(workload) for p in c["ports"]}
            self.assertEqual(values["metrics_listen"], f"0.0.0.0:{ports['metrics']}")
            if "listen" in values:
                self.assertEqual(values["listen"], f"0.0.0.0:{ports['grpc']}")
            for key in ("state", "health_socket", "data_root", "checkpoint_root", "tls_certificate", "tls_key", "tls_authority"):
                if key in values:
                    self.assertTrue(any(values[key].startswith(path) for path in mounts(workload)), key)
            grace = manifests.template(workload)["spec"]["terminationGracePeriodSeconds"]
            self.assertGreater(grace, values.get("leave_seconds", 0))

    def test_workers_dial_the_service_of_the_coordinator(self):
        for objects in self.overlays.values():
            worker = next(w for w in manifests.workloads(objects) if program(w) == "takt-worker")
            host, port = yaml.safe_load(manifests.settings(objects, worker)[1])["coordinator"].split(":")
            service = next(s for s in manifests.of_kind(objects, "Service") if s["metadata"]["name"] == host)
            self.assertEqual([p["port"] for p in service["spec"]["ports"]], [int(port)])
            for certificate in manifests.of_kind(objects, "Certificate"):
                if certificate["metadata"]["name"] == host:
                    self.assertIn(host, certificate["spec"]["dnsNames"])

    def test_probes_ask_the_program_itself(self):
        for _, workload in self.each_workload():
            for c in manifests.containers(workload):
                for probe, asked in (("startupProbe", "--health"), ("livenessProbe", "--health=live"), ("readinessProbe", "--health=ready")):
                    self.assertEqual(c[probe]["exec"]["command"], [program(workload), asked])
                    self.assertGreater(c[probe]["timeoutSeconds"], 10, "the answer's own time limit")

    def test_a_gpu_worker_has_one_gpu(self):
        worker = next(w for w in manifests.workloads(self.overlays["overlays/gpu"]) if program(w) == "takt-worker")
        self.assertEqual(manifests.containers(worker)[0]["resources"]["limits"]["nvidia.com/gpu"], 1)

    def test_pods_for_podman_keep_what_the_workload_says(self):
        objects = self.overlays["overlays/local"]
        made = pods.of_workload(objects, "takt-worker", 1, "10.9.0.12", {"takt-coordinator": "10.9.0.10"}, "/secrets")
        pod = next(o for o in made if o["kind"] == "Pod")
        self.assertEqual(pod["metadata"]["name"], "takt-worker-1")
        env = {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"]}
        self.assertEqual(env["TAKT_WORKER_NAME"], "takt-worker-1")
        self.assertEqual(env["TAKT_WORKER_DATA_ADDRESS"], "10.9.0.12")
        self.assertEqual(env["TAKT_WORKER_TLS_KEY"], "/run/takt-tls/takt-worker-1.key")
        self.assertTrue(pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"])

    def test_every_field_is_one_of_its_kind(self):
        for overlay, objects in {**self.overlays, "client": manifests.client(), "job": manifests.job()}.items():
            self.assertEqual([fault for o in objects for fault in schemas.faults(o)], [], overlay)
        if schemas.models is None:
            self.skipTest("SKIPPED: Kubernetes' own kinds need python3-kubernetes (deploy/install-deps.sh)")

    def assert_shape_seen(self, overlay, name, change, text):
        o = copy.deepcopy(next(o for o in self.overlays[overlay] if f"{o['kind']}/{o['metadata']['name']}" == name))
        change(o["spec"])
        self.assertRegex("\n".join(schemas.faults(o)), text)

    def test_wrong_shapes_are_seen(self):
        certificate, monitor = "Certificate/takt-coordinator", "PodMonitor/takt"
        self.assert_shape_seen("overlays/ha", certificate, lambda s: s.update(uri=["spiffe://a"]), "spec: uri is no field")
        self.assert_shape_seen("overlays/ha", certificate, lambda s: s.pop("secretName"), "spec: no secretName")
        self.assert_shape_seen("overlays/ha", certificate, lambda s: s.update(duration="90d"), "spec.duration: '90d' does not fit")
        self.assert_shape_seen("overlays/ha", certificate, lambda s: s["usages"].append("server"), "'server' is none of")
        self.assert_shape_seen("overlays/ha", certificate, lambda s: s.update(isCA="no"), "spec.isCA: 'no' is no bool")
        self.assert_shape_seen("overlays/ha", monitor, lambda s: s["podMetricsEndpoints"][0].update(ports="m"), r"Endpoints\[0\]: ports is no field")
        self.assert_shape_seen("overlays/ha", monitor, lambda s: s.update(podMetricsEndpoints={}), "podMetricsEndpoints: is no list")

    @unittest.skipIf(schemas.models is None, "SKIPPED: needs python3-kubernetes")
    def test_wrong_shapes_of_kubernetes_own_kinds_are_seen(self):
        def container(spec):
            return spec["template"]["spec"]["containers"][0]

        worker = "StatefulSet/takt-worker"
        self.assert_shape_seen("base", worker, lambda s: s.update(replica=2), "StatefulSet.spec: replica is no field")
        self.assert_shape_seen("base", worker, lambda s: s.update(replicas="2"), "spec.replicas: '2' is no int")
        self.assert_shape_seen("base", worker, lambda s: container(s).update(readinessprobe={}), r"containers\[0\]: readinessprobe is no field")
        self.assert_shape_seen("base", worker, lambda s: container(s).pop("name"), r"containers\[0\]: .*name.* must not be")
        self.assert_shape_seen("base", worker, lambda s: s.update(template=[]), "spec.template: \\[\\] is no V1PodTemplateSpec")

    # The checks see a mistake of each kind.
    def assert_seen(self, faults, change, text):
        objects = copy.deepcopy(self.overlays["overlays/ha"])
        change({f"{o['kind']}/{o['metadata']['name']}": o for o in objects})
        self.assertRegex("\n".join(faults(objects)), text)

    def test_faults_are_seen(self):
        def pod(o, name):
            return o[f"StatefulSet/{name}"]["spec"]["template"]

        references, security = manifests.reference_faults, manifests.security_faults
        self.assert_seen(references, lambda o: pod(o, "takt-worker")["metadata"]["labels"].pop("app.kubernetes.io/component"),
                         "does not take its own pods")
        self.assert_seen(references, lambda o: o["Service/takt-coordinator"]["spec"]["ports"][0].update(targetPort="http"), "no port http")
        self.assert_seen(references, lambda o: o["PodMonitor/takt"]["spec"]["podMetricsEndpoints"][0].update(port="web"), "no port web")
        self.assert_seen(references, lambda o: o["NetworkPolicy/takt-worker"]["spec"]["egress"][0]["ports"][0].update(port="rpc"),
                         "no port rpc")
        self.assert_seen(references, lambda o: next(v for v in pod(o, "takt-worker")["spec"]["volumes"] if "configMap" in v)
                         ["configMap"].update(name="other"), "no ConfigMap other")
        self.assert_seen(references, lambda o: o["PersistentVolumeClaim/takt-data"]["metadata"].update(name="other"), "no Persistent.* takt-data")
        self.assert_seen(references, lambda o: o["Issuer/takt"]["metadata"].update(name="other"), "no Issuer takt")
        self.assert_seen(references, lambda o: pod(o, "takt-coordinator")["spec"].update(priorityClassName="high"), "no such PriorityClass")
        self.assert_seen(security, lambda o: pod(o, "takt-worker")["spec"]["containers"][0]["securityContext"].pop("capabilities"), "may do more")
        self.assert_seen(security, lambda o: pod(o, "takt-worker")["spec"]["securityContext"].pop("seccompProfile"), "seccomp")
        self.assert_seen(security, lambda o: o["NetworkPolicy/takt-default-deny"]["spec"].update(policyTypes=["Ingress"]), "no default deny")


if __name__ == "__main__":
    unittest.main()
