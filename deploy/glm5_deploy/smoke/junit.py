"""Smoke rows as JUnit XML: one test suite a host, one test case a check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from glm5_deploy.report.outcome import Check, HostOutcome
from glm5_deploy.report.text import clean


def junit_xml(outcomes: Sequence[HostOutcome]) -> bytes:
    """The document, UTF-8 with a declaration. A host without rows (unreachable) has one error."""
    root = ET.Element("testsuites", name="glm5-deploy smoke")
    for outcome in outcomes:
        root.append(_suite(outcome))
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def write_junit(path: Path, outcomes: Sequence[HostOutcome]) -> None:
    """Write the document.

    Raises:
        OSError: the file cannot be written, for instance because its folder is missing.
    """
    path.write_bytes(junit_xml(outcomes))


def _suite(outcome: HostOutcome) -> ET.Element:
    statuses = [check.status for check in outcome.checks]
    broken = outcome.error is not None and not outcome.checks
    suite = ET.Element(
        "testsuite",
        name=clean(outcome.host),
        tests=str(len(statuses) + broken),
        failures=str(statuses.count("failed")),
        errors=str(int(broken)),
        skipped=str(statuses.count("skipped")),
        time=f"{outcome.seconds:.3f}",
    )
    suite.extend(_case(outcome.host, check) for check in outcome.checks)
    if broken and outcome.error is not None:
        case = ET.SubElement(suite, "testcase", classname=outcome.host, name="connection", time="0")
        ET.SubElement(case, "error", message=clean(outcome.error.message))
    return suite


def _case(host: str, check: Check) -> ET.Element:
    case = ET.Element(
        "testcase", classname=host, name=clean(check.name), time=f"{check.seconds:.3f}"
    )
    detail = clean(check.detail)
    if check.status == "failed":
        failure = ET.SubElement(case, "failure", message=detail)
        failure.text = clean(check.hint or detail)
    elif check.status == "skipped":
        ET.SubElement(case, "skipped", message=detail)
    elif detail:
        ET.SubElement(case, "system-out").text = detail
    return case
