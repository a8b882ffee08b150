# SPDX-License-Identifier: Apache-2.0
"""The objects of an overlay of deploy/kubernetes, as `kubectl kustomize` builds it, and the references between them."""
import pathlib
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["base", "overlays/local", "overlays/gpu", "overlays/ha"]
# Where there is no cert-manager these are made by hand with `takt certs` (docs/deploy.md); the last one comes with an etcd.
SECRETS_BY_HAND = {"takt-coordinator-tls", "takt-worker-tls", "takt-client-tls", "takt-etcd-client"}
# The user's own job file, made with kubectl (docs/deploy.md).
MAPS_BY_HAND = {"takt-job"}


def kustomize(folder):
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)


def build(overlay):
    built = kustomize(FOLDER / overlay)
    if "patchesStrategicMerge" in built.stderr:
        built = build_as_of_old(overlay)
    if built.returncode != 0:
        raise RuntimeError(f"kubectl kustomize {overlay}: {built.stderr}")
    return list(yaml.safe_load_all(built.stdout))


def build_as_of_old(overlay):
    """Builds also with the kubectl of Debian 12 (1.20), which has other names for folders and merging files."""
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory) / "kubernetes"
        shutil.copytree(FOLDER, copy)
        for file in copy.rglob("kustomization.yaml"):
            content = yaml.safe_load(file.read_text())
            content["bases"] = [name for name in content["resources"] if (file.parent / name).is_dir()]
            content["resources"] = [name for name in content["resources"] if name not in content["bases"]]
            content["patchesStrategicMerge"] = [patch["path"] for patch in content.pop("patches", [])]
            file.write_text(yaml.safe_dump(content))
        return kustomize(copy / overlay)


def client():
    return list(yaml.safe_load_all((FOLDER / "client.yaml").read_text()))


def job():
    return list(yaml.safe_load_all((FOLDER / "job.yaml").read_text()))


def of_kind(objects, *kinds):
    return [o for o in objects if o["kind"] in kinds]


def names(objects, kind):
    return {o["metadata"]["name"] for o in of_kind(objects, kind)}


def workloads(objects):
    return of_kind(objects, "StatefulSet", "Deployment", "DaemonSet")


def template(workload):
    return workload if workload["kind"] == "Pod" else workload["spec"]["template"]


def labels(workload):
    return template(workload)["metadata"]["labels"]


def containers(workload):
    return template(workload)["spec"]["containers"]


def selects(selector, workload):
    """Whether a labelSelector selects the pods of `workload`. We use one form only, matchLabels."""
    wanted = selector.get("matchLabels", {})
    return wanted.items() <= labels(workload).items()


def port_names(workload):
    return {port["name"] for c in containers(workload) for port in c.get("ports", [])}


def settings(objects, workload):
    """The settings file of a workload's pods: (file name, text)."""
    for volume in template(workload)["spec"]["volumes"]:
        for config in of_kind(objects, "ConfigMap"):
            if volume.get("configMap", {}).get("name") == config["metadata"]["name"]:
                return next(iter(config["data"].items()))
    raise LookupError(f"{workload['metadata']['name']} mounts no ConfigMap")


def reference_faults(objects):
    """Every reference that leads nowhere, in words."""
    yield from selector_faults(objects)
    yield from port_faults(objects)
    for workload in workloads(objects) + of_kind(objects, "Pod", "Job"):
        for fault in pod_faults(objects, workload):
            yield f"{workload['kind']} {workload['metadata']['name']}: {fault}"


def selector_faults(objects):
    pods = workloads(objects)
    for workload in pods:
        name = workload["metadata"]["name"]
        if not selects(workload["spec"]["selector"], workload):
            yield f"{name}: its selector does not take its own pods"
        if workload["spec"].get("serviceName", name) not in names(objects, "Service"):
            yield f"{name}: serviceName is no Service"
        if not any(selects(p["spec"]["selector"], workload) for p in of_kind(objects, "PodDisruptionBudget")):
            yield f"{name}: has no PodDisruptionBudget"
        for spread in template(workload)["spec"].get("topologySpreadConstraints", []):
            if not selects(spread["labelSelector"], workload):
                yield f"{name}: spreads other pods than its own"
    for o in of_kind(objects, "Service", "PodDisruptionBudget", "PodMonitor", "NetworkPolicy"):
        for selector in pod_selectors(o):
            if not any(selects(selector, workload) for workload in pods + of_kind(objects, "Pod")):
                yield f"{o['kind']} {o['metadata']['name']}: {selector} takes no pods"


def pod_selectors(o):
    """The selectors that must select pods of ours. Pods of other namespaces are not known here."""
    spec = o["spec"]
    if o["kind"] == "Service":
        return [{"matchLabels": spec["selector"]}]
    if o["kind"] != "NetworkPolicy":
        return [spec["selector"]]
    peers = [peer for rule in spec.get("ingress", []) for peer in rule["from"]]
    peers += [peer for rule in spec.get("egress", []) for peer in rule["to"]]
    return [spec["podSelector"]] + [peer["podSelector"] for peer in peers if "namespaceSelector" not in peer]


def port_faults(objects):
    pods = workloads(objects)

    def taken(selector):
        return [workload for workload in pods if selects(selector, workload)]

    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            for workload in taken({"matchLabels": service["spec"]["selector"]}):
                if port["targetPort"] not in port_names(workload):
                    yield f"Service {service['metadata']['name']}: no port {port['targetPort']}"
    for monitor in of_kind(objects, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for workload in taken(monitor["spec"]["selector"]):
                if endpoint["port"] not in port_names(workload):
                    yield f"PodMonitor {monitor['metadata']['name']}: no port {endpoint['port']} at {workload['metadata']['name']}"
    for policy in of_kind(objects, "NetworkPolicy"):
        spec = policy["spec"]
        rules = [(rule, taken(spec["podSelector"])) for rule in spec.get("ingress", [])]
        rules += [(rule, taken(peer["podSelector"])) for rule in spec.get("egress", []) for peer in rule["to"]
                  if "namespaceSelector" not in peer]
        for rule, targets in rules:
            for port in rule["ports"]:
                for workload in targets:
                    if isinstance(port["port"], str) and port["port"] not in port_names(workload):
                        yield f"NetworkPolicy {policy['metadata']['name']}: no port {port['port']} at {workload['metadata']['name']}"


def pod_faults(objects, workload):
    spec = template(workload)["spec"]
    secrets = SECRETS_BY_HAND | {c["spec"]["secretName"] for c in of_kind(objects, "Certificate")}
    claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in spec["volumes"]} | claims
    mounted = {mount["name"] for c in containers(workload) for mount in c["volumeMounts"]}
    if volumes != mounted:
        yield f"volumes {sorted(volumes)}, but {sorted(mounted)} are mounted"
    for volume in spec["volumes"]:
        if "configMap" in volume and volume["configMap"]["name"] not in names(objects, "ConfigMap") | MAPS_BY_HAND:
            yield f"no ConfigMap {volume['configMap']['name']}"
        if "secret" in volume and volume["secret"]["secretName"] not in secrets:
            yield f"nobody makes the Secret {volume['secret']['secretName']}"
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if claim not in names(objects, "PersistentVolumeClaim"):
                yield f"no PersistentVolumeClaim {claim}"
        if "csi" in volume:
            issuer = volume["csi"]["volumeAttributes"]["csi.cert-manager.io/issuer-name"]
            if issuer not in names(objects, "Issuer"):
                yield f"no Issuer {issuer}"
    if spec.get("serviceAccountName") not in names(objects, "ServiceAccount") | {None}:
        yield "no such ServiceAccount"
    if spec.get("priorityClassName") not in names(objects, "PriorityClass") | {None}:
        yield "no such PriorityClass"


def security_faults(objects):
    """Breaches of the Pod Security Standard `restricted`, and of what we ask for beyond it."""
    for workload in workloads(objects) + of_kind(objects, "Pod", "Job"):
        name, spec = workload["metadata"]["name"], template(workload)["spec"]
        pod = spec["securityContext"]
        if not (pod.get("runAsNonRoot") and pod.get("runAsUser") and pod.get("seccompProfile") == {"type": "RuntimeDefault"}):
            yield f"{name}: not a user of its own under the runtime's seccomp profile"
        if spec.get("automountServiceAccountToken") is not False or spec.get("enableServiceLinks") is not False:
            yield f"{name}: gets a token or service links"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")) or any("hostPath" in v for v in spec["volumes"]):
            yield f"{name}: shares something with its host"
        for c in containers(workload):
            wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            if c.get("securityContext") != wanted:
                yield f"{name}: container {c['name']} may do more than {wanted}"
    denials = [p for p in of_kind(objects, "NetworkPolicy")
               if p["spec"]["podSelector"] == {} and set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"}
               and not p["spec"].get("ingress") and not p["spec"].get("egress")]
    if len(denials) != 1:
        yield "no default deny"
