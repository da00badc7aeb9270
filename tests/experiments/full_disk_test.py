"""A disk that fills up costs one line and no step that was saved."""

import subprocess

import pytest

from tests.experiments import tiny

# $0: mount point, $1: KiB, $2: what lies there already, $3: copied back to,
# the rest: the command.
_SCRIPT = """
mount -t tmpfs -o "size=$1k" tmpfs "$0" || exit 77
from=$2 back=$3
cp -r "$from/." "$0" || exit 78
shift 3
"$@"
status=$?
cp -r "$0/." "$back"
exit $status
"""


def _call_on_small_disk(place: tiny.Place, kib, *flags):
  """Runs stage 1 on a file system of its own; what it left lies in place."""
  source = place.workdir.with_name("source")
  place.workdir.rename(source)
  place.workdir.mkdir()
  back = place.workdir.with_name("back")
  back.mkdir()
  try:
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", _SCRIPT, str(place.workdir), str(kib),
         str(source), str(back), *place.command("stage1", *flags)],
        cwd=tiny.ROOT, text=True, capture_output=True, timeout=300,
        check=False)
  except FileNotFoundError:
    pytest.skip("no unshare(1)")
  if done.returncode == 77 or "unshare" in done.stderr:
    pytest.skip(f"may not mount: {done.stderr.strip()}")
  assert done.returncode != 78, "the disk of the test is too small"
  place.workdir.rmdir()
  back.rename(place.workdir)
  return done


@pytest.mark.parametrize("room_kib", [
    # For some checkpoints, for none.
    2500, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_last_good_checkpoint_stays_and_the_run_goes_on(
    finished, tmp_path, room_kib):
  place = finished.copy(tmp_path, "sft")
  flags = ["--checkpoint.every_steps=1", "--checkpoint.keep=100"]
  # Small files take a page each.
  used = 4 * sum(1 + path.stat().st_size // 4096
                 for path in place.workdir.rglob("*"))
  done = _call_on_small_disk(place, used + room_kib, *flags)
  assert done.returncode == 2, done.stderr
  lines = done.stderr.splitlines()
  assert lines[-1].startswith("error: disk full while ")
  assert str(place.run("stage1")) in lines[-1]
  assert "checkpoint" in lines[-1]
  assert "run the same command again" in lines[-1]
  assert "Traceback" not in done.stderr
  saved = [path for path in (place.run("stage1") / "checkpoints").iterdir()
           if path.name.isdigit()]
  assert (len(saved) > 0) == (room_kib > 2000)
  assert not (place.run("stage1") / "summary.json").exists()
  again = place.call("stage1", *flags)
  assert again.returncode == 0, again.stderr
  assert place.metrics("stage1") == finished.metrics("stage1")
  assert place.policy("stage1") == finished.policy("stage1")
