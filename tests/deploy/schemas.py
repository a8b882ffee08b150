# SPDX-License-Identifier: Apache-2.0
"""Checks that an object has the shape of its kind. Fields that the kind does not have are faults too.

Kubernetes' own kinds have theirs from the models of its Python client (Debian: python3-kubernetes, Kubernetes 1.22). Those of
cert-manager and the Prometheus operator are written down here, as far as we use them, after their CustomResourceDefinitions:
    str, int, bool       a value of that type              {"a", "b"}    one of these
    re.compile(...)      a string that fits whole          [S]           a list of S
    {"field": S}         an object; "field!": must be there   {str: S}   an object with any fields
"""
import re

try:
    from kubernetes.client import models
except ImportError:
    models = None

DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
METADATA = {"name!": str, "namespace": str, "labels": {str: str}, "annotations": {str: str}}
SELECTOR = {"matchLabels": {str: str}}
KEY_USAGES = {
    "signing", "digital signature", "content commitment", "key encipherment", "key agreement", "data encipherment", "cert sign", "crl sign",
    "encipher only", "decipher only", "any", "server auth", "client auth", "code signing", "email protection", "s/mime", "ipsec end system",
    "ipsec tunnel", "ipsec user", "timestamping", "ocsp signing", "microsoft sgc", "netscape sgc"}


def custom(spec):
    return {"apiVersion!": str, "kind!": str, "metadata!": METADATA, "spec!": spec}


CUSTOM = {
    ("cert-manager.io/v1", "Issuer"): custom({"selfSigned": {}, "ca": {"secretName!": str}}),
    ("cert-manager.io/v1", "Certificate"): custom({
        "secretName!": str,
        "issuerRef!": {"name!": str, "kind": {"Issuer", "ClusterIssuer"}, "group": str},
        "isCA": bool,
        "commonName": str,
        "dnsNames": [str],
        "uris": [re.compile(r"[a-z]+://.+")],
        "usages": [KEY_USAGES],
        "duration": DURATION,
        "renewBefore": DURATION,
        "privateKey": {"algorithm": {"RSA", "ECDSA", "Ed25519"}, "size": int, "encoding": {"PKCS1", "PKCS8"}, "rotationPolicy": {"Never", "Always"}},
    }),
    ("monitoring.coreos.com/v1", "PodMonitor"): custom({
        "selector!": SELECTOR,
        "podMetricsEndpoints!": [{
            "port": str,
            "path": str,
            "interval": DURATION,
            "honorLabels": bool,
            "relabelings": [{
                "sourceLabels": [LABEL], "separator": str, "regex": str, "replacement": str, "targetLabel": LABEL,
                "action": {"replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"},
            }],
        }],
    }),
}


def faults(o):
    """All faults, each with its place, in words."""
    kind = (o["apiVersion"], o["kind"])
    if kind in CUSTOM:
        yield from custom_faults(CUSTOM[kind], o, o["kind"])
    elif models is not None:
        yield from core_faults(f"V1{o['kind']}", o, o["kind"])


def custom_faults(schema, value, at):
    if isinstance(schema, type):
        if type(value) is not schema:
            yield f"{at}: {value!r} is no {schema.__name__}"
    elif isinstance(schema, re.Pattern):
        if not isinstance(value, str) or not schema.fullmatch(value):
            yield f"{at}: {value!r} does not fit {schema.pattern}"
    elif isinstance(schema, set):
        if value not in schema:
            yield f"{at}: {value!r} is none of {sorted(schema)}"
    elif type(value) is not type(schema):
        yield f"{at}: is no {type(schema).__name__}"
    elif isinstance(schema, list):
        for i, item in enumerate(value):
            yield from custom_faults(schema[0], item, f"{at}[{i}]")
    elif str in schema:
        for key, item in value.items():
            yield from custom_faults(schema[str], item, f"{at}.{key}")
    else:
        fields = {name.rstrip("!"): of for name, of in schema.items()}
        yield from (f"{at}: {name} is no field" for name in sorted(value.keys() - fields.keys()))
        yield from (f"{at}: no {name[:-1]}" for name in schema if name.endswith("!") and name[:-1] not in value)
        for name in value.keys() & fields.keys():
            yield from custom_faults(fields[name], value[name], f"{at}.{name}")


PRIMITIVES = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def core_faults(of, value, at):
    """of: a type, as the client's models name it: "str", "list[V1Container]", "dict(str, str)", "V1Container"."""
    container = re.fullmatch(r"list\[(.+)\]|dict\(str, (.+)\)", of)
    if of == "object" or of == "datetime":
        return
    if of in PRIMITIVES:
        if not isinstance(value, PRIMITIVES[of]) or (of != "bool" and isinstance(value, bool)):
            yield f"{at}: {value!r} is no {of}"
    elif not isinstance(value, list if of.startswith("list[") else dict):
        yield f"{at}: {value!r} is no {of}"
    elif of.startswith("list["):
        for i, item in enumerate(value):
            yield from core_faults(container[1], item, f"{at}[{i}]")
    elif container:
        for key, item in value.items():
            is_quantity = at.endswith((".limits", ".requests")) and isinstance(item, int)
            yield from core_faults("int" if is_quantity else container[2], item, f"{at}.{key}")
    else:
        yield from model_faults(getattr(models, of), value, at)


def model_faults(model, value, at):
    names = {name: field for field, name in model.attribute_map.items()}
    yield from (f"{at}: {name} is no field" for name in sorted(value.keys() - names.keys()))
    known = {names[name]: item for name, item in value.items() if name in names}
    try:
        model(**known)  # it raises where a field is missing or has a word that it does not take
    except ValueError as error:
        yield f"{at}: {error}"
    for field, item in known.items():
        yield from core_faults(model.openapi_types[field], item, f"{at}.{model.attribute_map[field]}")
