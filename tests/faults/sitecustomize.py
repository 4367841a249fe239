"""Makes one function of da3po raise, in whichever process of a run loads it: Python imports this module at its start.

DA3PO_TEST_FAULT is `module:function` or `module:Class.method`; with DA3PO_TEST_FAULT_RANK, on that learner rank alone.
"""

import importlib.abc
import importlib.machinery
import os
import sys

MODULE, _, NAME = os.environ.get("DA3PO_TEST_FAULT", "").partition(":")
RANK = os.environ.get("DA3PO_TEST_FAULT_RANK")


def _spoil(module):
    *classes, name = NAME.split(".")
    owner = module
    for cls in classes:
        owner = getattr(owner, cls)
    healthy = getattr(owner, name)

    def faulty(*args, **kwargs):
        if RANK is not None and str(args[0]._rendezvous.rank) != RANK:
            return healthy(*args, **kwargs)
        raise RuntimeError(f"fault in {NAME}")

    setattr(owner, name, faulty)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        execute = spec.loader.exec_module

        def execute_and_spoil(module):
            execute(module)
            _spoil(module)

        spec.loader.exec_module = execute_and_spoil
        return spec


if MODULE:
    sys.meta_path.insert(0, _Finder())
