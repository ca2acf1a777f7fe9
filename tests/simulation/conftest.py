"""Make the plain references importable as `simulation_reference`, whatever pytest's import mode."""

import importlib.util
import sys
from pathlib import Path

if "simulation_reference" not in sys.modules:
    specification = importlib.util.spec_from_file_location(
        "simulation_reference", Path(__file__).resolve().with_name("reference.py")
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["simulation_reference"] = module
    specification.loader.exec_module(module)
