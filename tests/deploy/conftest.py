import pathlib
import sys

# The real cluster that the process tests drive.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process"))
