# SPDX-License-Identifier: Apache-2.0
"""Compares two records. Each difference is a line that names the job or simulation, the place in it and both values."""

# The plan is how a job is computed. It may change where its results do not, so it is counted but is no difference.
NOT_A_RESULT = ("plan_hash",)


def places(value, path=()):
    """All leaves below a value: (path, leaf)."""
    if not isinstance(value, (dict, list)):
        yield path, value
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(each, (*path, str(key)))


def results_only(result):
    return {path: leaf for path, leaf in places(result) if path[-1] not in NOT_A_RESULT}


def differences(before, after, partial=False):
    """Lines; none if all results are equal. partial: leave out what only one of the two has recorded."""
    lines = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in before or name not in after:
            if not partial:
                lines.append(f"{name}: only in the {'second' if name in after else 'first'} record")
            continue
        one, other = results_only(before[name]), results_only(after[name])
        for path in [*one, *(path for path in other if path not in one)]:
            if one.get(path) != other.get(path):
                lines.append(f"{name}: {' '.join(path)}: {one.get(path, 'nothing')} and {other.get(path, 'nothing')}")
        # Two failures are no evidence that results are equal.
        if "error" in before[name] and before[name] == after[name]:
            lines.append(f"{name}: failed in both records: {before[name]['error']}")
    return lines


def notes(before, after):
    both = [name for name in before if name in after and "checkpoint" in before[name] and "checkpoint" in after[name]]
    changed = [name for name in both
               if before[name]["checkpoint"]["plan_hash"] != after[name]["checkpoint"]["plan_hash"]]
    return [f"note: {len(changed)} of {len(both)} jobs have another plan (its hash), e.g. {changed[0]}"] if changed else []


def summary(before, after):
    leaves = sum(len(results_only(before[name])) for name in before if name in after)
    return f"{len(set(before) & set(after))} of {len(set(before) | set(after))} in both, {leaves} values compared"
