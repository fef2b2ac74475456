"""Fail if a test run skipped a test for any reason but a missing GPU, or ran no test.

Usage: python .ci/check_skips.py JUNIT_XML
"""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

NAMES_A_GPU = re.compile(r"\bGPUs?\b", re.IGNORECASE)


def main(junit_xml: Path) -> str | None:
    """Return what is wrong with the run, or None."""
    cases = list(ElementTree.parse(junit_xml).iter("testcase"))
    skips = [(case, skip) for case in cases for skip in case.iter("skipped")]
    if len(cases) == len(skips):
        return f"check_skips: no test ran ({len(skips)} skipped)"
    wrong = [
        f"  {case.get('classname')}::{case.get('name')}: {skip.get('message')}"
        for case, skip in skips
        if not NAMES_A_GPU.search(skip.get("message", ""))
    ]
    if wrong:
        return "\n".join(["check_skips: skipped, but not for want of a GPU:", *wrong])
    print(f"check_skips: {len(cases) - len(skips)} ran, {len(skips)} skipped for want of a GPU")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
