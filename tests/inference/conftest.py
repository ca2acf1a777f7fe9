"""Make the plain references importable as `inference_reference`, and fit once what several tests look at."""

import importlib.util
import sys
from pathlib import Path

if "inference_reference" not in sys.modules:
    specification = importlib.util.spec_from_file_location(
        "inference_reference", Path(__file__).resolve().with_name("reference.py")
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["inference_reference"] = module
    specification.loader.exec_module(module)
