"""How is it told what a look at the machine finds? `wherry doctor`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from wherry.server.cli.doctor.look import look
from wherry.server.cli.show import as_json, print_line, printable

FAILED = 1
#: What stands before a finding.
MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


def doctor(args: argparse.Namespace) -> int:
    """Look at the machine, print a line for each finding; 1 if something is wrong."""
    found = list(look({"--port": args.port, "--grpc-port": args.grpc_port}))
    if args.gpu:
        from wherry.server.cli.doctor.gpus import look_at_gpus

        found += look_at_gpus()
    if args.json:
        for finding in found:
            print_line(as_json(asdict(finding), None))
    else:
        width = max(len(finding.topic) for finding in found)
        for finding in found:
            line = f"{MARKS[finding.state]}  {finding.topic:<{width}}  {finding.found}"
            print_line(printable(line))
            if finding.remedy:
                print_line(f"{'':{width + 9}}{finding.remedy}")
    return FAILED if any(finding.state == "wrong" for finding in found) else 0
