# SPDX-License-Identifier: Apache-2.0
"""Makes pods from a StatefulSet of deploy/kubernetes that `podman kube play` (4.3) can run, and fills in what a cluster would.
  pods.py OVERLAY NAME INDEX ADDRESS SECRETS [HOST=ADDRESS...]
prints the YAML of the pod NAME-INDEX and of what it mounts. Secrets are the directories SECRETS/SECRET-NAME."""
import copy
import sys

import manifests
import yaml


def expand(variables):
    """Replaces references to the pod, and $(NAME), by their values."""
    values = {}
    for variable in variables:
        value = variable["value"]
        for name, earlier in values.items():
            value = value.replace(f"$({name})", earlier)
        values[variable["name"]] = value
    return [{"name": name, "value": value} for name, value in values.items()]


def resolve(variable, container, facts):
    source = variable.get("valueFrom", {})
    if "fieldRef" in source:
        return {"name": variable["name"], "value": facts[source["fieldRef"]["fieldPath"]]}
    if "resourceFieldRef" in source:
        group, resource = source["resourceFieldRef"]["resource"].split(".")
        return {"name": variable["name"], "value": container["resources"][group][resource]}
    return variable


def of_workload(objects, name, index, address, aliases, secrets):
    """The pod, and the ConfigMaps and claims that it mounts. aliases: {name: address}, since there are no Services."""
    workload = next(w for w in manifests.workloads(objects) if w["metadata"]["name"] == name)
    pod_name = f"{name}-{index}"
    spec = copy.deepcopy(manifests.template(workload)["spec"])
    spec["hostAliases"] = [{"ip": ip, "hostnames": [alias]} for alias, ip in aliases.items()]
    for container in spec["containers"]:
        facts = {"metadata.name": pod_name, "status.podIP": address}
        container["env"] = expand([resolve(v, container, facts) for v in container.get("env", [])])
        container["ports"] = []  # podman would publish them on the host
    claims = copy.deepcopy(workload["spec"].get("volumeClaimTemplates", []))
    for claim in claims:
        volume = claim["metadata"]["name"]
        claim.update(apiVersion="v1", kind="PersistentVolumeClaim", metadata={"name": f"{volume}-{pod_name}"})
        spec["volumes"].append({"name": volume, "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}})
    for volume in spec["volumes"]:
        if "secret" in volume:  # podman does not know defaultMode
            volume["hostPath"] = {"path": f"{secrets}/{volume.pop('secret')['secretName']}", "type": "Directory"}
        if "emptyDir" in volume:  # podman gives all pods the one of that name
            rename(spec, volume["name"], f"{volume['name']}-{pod_name}")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name, "labels": manifests.labels(workload)}, "spec": spec}
    configs = {volume.get("configMap", {}).get("name") for volume in spec["volumes"]}
    return claims + [o for o in manifests.of_kind(objects, "ConfigMap") if o["metadata"]["name"] in configs] + [pod]


def rename(spec, old, new):
    for entry in spec["volumes"] + [mount for container in spec["containers"] for mount in container["volumeMounts"]]:
        if entry["name"] == old:
            entry["name"] = new


def main(overlay, name, index, address, secrets, *aliases):
    objects = manifests.build(overlay)
    print(yaml.safe_dump_all(of_workload(objects, name, index, address, dict(a.split("=") for a in aliases), secrets)))


if __name__ == "__main__":
    main(*sys.argv[1:])
