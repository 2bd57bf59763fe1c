"""lynx plan, as a script would call it: a NumPy file in, JSON out."""
import json
import struct
import subprocess

from cluster import BIN


def npy(rows):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}"
    header = header.ljust(117) + "\n"
    data = [value for row in rows for value in row]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(data)}f", *data)


def plan(path, rows, *arguments):
    path.write_bytes(npy(rows))
    return subprocess.run([str(BIN / "lynx"), "plan", "--logits", str(path), *arguments], capture_output=True, text=True, timeout=60)


ROWS = [[-0.2, 0.2, -1.2, -1.6, 1.7, -1.9], [0.0, -0.8, -1.9, -0.9, -1.4, -0.4], [1.6, -1.7, -0.6, 0.8, 0.5, -1.9]]


def test_prints_one_json_document(tmp_path):
    done = plan(tmp_path / "logits.npy", ROWS, "--policy", "lynx", "--alpha", "1", "--beta", "2", "--k", "2")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["active"] == [0, 3, 4] and answer["exact_active"] == 5
    assert [row["ids"] for row in answer["rows"]] == [[4, 0], [0, 3], [0, 3]]
    assert all(abs(sum(row["weights"]) - 1) < 1e-5 for row in answer["rows"])
    assert len(answer["kept_mass"]) == 3 and answer["kept_mass"][2] == 1


def test_refuses_what_cannot_be_planned(tmp_path):
    bad_row = plan(tmp_path / "logits.npy", [ROWS[0], [float("nan")] * 6], "--policy", "lynx", "--k", "2")
    assert bad_row.returncode == 1 and "row 1" in bad_row.stderr and bad_row.stdout == ""
    bad_flag = plan(tmp_path / "logits.npy", ROWS, "--policy", "lynx", "--beta", "-3", "--k", "2")
    assert bad_flag.returncode == 2 and "beta is '-3'" in bad_flag.stderr
