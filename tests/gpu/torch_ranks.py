"""Ranks of `torchrun` under `berth run --gpus 2`: each uses its own device, in the job and in nested runs of each form.
Jobs that choose their device by each kind of name: each sees that device alone. Drained devices: refused or awaited.

    torch_ranks.py BERTH        starts the jobs; needs a daemon, two GPUs, PyTorch with NCCL
    torch_ranks.py BERTH rank   one rank of it
"""

import os
import subprocess
import sys

RANKS = 2
# Each names one device of the rank's lease.
NESTED = [["--gpus", "1"], ["--device", "any"], ["--mem", "1GiB"]]


def uuid_of(index):
    import torch

    return str(torch.cuda.get_device_properties(index).uuid)


def rank(berth):
    """Prints "RANK UUID NESTED", the rank's device and those of runs nested in the job, separated by commas."""
    import torch
    import torch.distributed

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.distributed.init_process_group("nccl")
    total = torch.ones(1, device="cuda")
    torch.distributed.all_reduce(total)
    assert total.item() == RANKS, total
    # One GPU of the job's, which the nested process sees as its only one.
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    used = []
    for options in NESTED:
        nested = subprocess.run([berth, "run", *options, "--", sys.executable, "-c", code], check=True,
                                stdout=subprocess.PIPE, text=True).stdout.split()
        assert nested[0] == "1", (options, nested)
        used.append(nested[1])
    # One write, so that the lines of two ranks do not mix.
    os.write(1, f"{local} {uuid_of(local)} {','.join(used)}\n".encode())
    torch.distributed.destroy_process_group()


def choose(berth):
    """Starts a job for each way to choose the second device. A job prints what it sees. Returns a summary."""
    code = ("import torch\nfor i in range(torch.cuda.device_count()): "
            "print(torch.cuda.get_device_properties(i).uuid)")

    def seen(options, visible, berths=True):
        environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        job = [berth, "run", *options, "--"] if berths else []
        result = subprocess.run([*job, sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE,
                                text=True, check=False)
        return result.returncode, result.stdout.split()

    _, devices = seen([], None, berths=False)
    second = devices[1]
    cases = [
        (["--device", "1"], None), (["--devices", "1"], None), (["--device", f"GPU-{second}"], None),
        (["--device", f"GPU-{second[:13]}"], None), (["--gpus", "1"], "1"), (["--gpus", "1"], f"GPU-{second[:13]}"),
        (["--gpus", "1", "--ordinals"], "1"), (["--device", "1", "--ordinals"], None), (["--devices", "0,1"], "1"),
    ]
    for options, visible in cases:
        assert seen(options, visible) == (0, [second]), (options, visible, seen(options, visible), devices)
    for visible in ("", "-1", "7", "all"):
        assert seen(["--gpus", "1"], visible) == (125, []), visible
    return f"{len(cases)} ways to choose a device, 4 refused"


def share(berth):
    """Starts three nested runs at once in a job of two devices, with ranks 0, 1 and 2. Returns a summary."""
    script = ("for rank in 0 1 2; do LOCAL_RANK=$rank \"$0\" run --gpus 1 -- "
              "sh -c 'echo $LOCAL_RANK $BERTH_DEVICE; sleep 2' & done; wait")
    job = subprocess.run([berth, "run", "--gpus", "2", "--", "sh", "-c", script, berth], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    devices = dict(line.split() for line in job.stdout.splitlines())
    assert sorted(devices) == ["0", "1", "2"], job
    assert devices["0"] != devices["1"] and devices["2"] in (devices["0"], devices["1"]), devices
    assert "share" in job.stderr, job.stderr
    return "a third rank shares a device, and says so"


def drain(berth):
    """Drains the second device: who names it is refused or waits, and all others get the first. Returns a summary."""

    def run(*words, **options):
        return subprocess.run([berth, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                              **options)

    assert run("--admin", "device", "drain", "1", "--reason", "a test").returncode == 0
    refused = run("run", "--device", "1", "--", "true")
    assert refused.returncode == 125 and "drain" in refused.stderr, refused
    first = run("run", "--gpus", "1", "--ordinals", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (first.returncode, first.stdout) == (0, "0\n"), first
    with subprocess.Popen([berth, "run", "--device", "1", "--wait-for-device", "--", "echo", "ran"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        notice = waits.stderr.readline()
        assert "waiting for" in notice, notice
        assert run("--admin", "device", "undrain", "1").returncode == 0
        assert waits.communicate()[0] == "ran\n" and waits.returncode == 0
    return "a drained device is refused, left out, and awaited"


def main():
    berth = sys.argv[1]
    if len(sys.argv) > 2:
        return rank(berth)
    choices = choose(berth)
    said = subprocess.run([berth, "run", "--gpus", str(RANKS), "--mem", "2GiB", "--", "torchrun", "--standalone",
                           f"--nproc-per-node={RANKS}", sys.argv[0], berth, "rank"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    print(said, end="")
    lines = sorted(line.split() for line in said.splitlines() if len(line.split()) == 3)
    assert [line[0] for line in lines] == [str(local) for local in range(RANKS)], said
    assert len({line[1] for line in lines}) == RANKS, "two ranks use one device"
    assert all(set(line[2].split(",")) == {line[1]} for line in lines), "a nested run uses another device than its rank"
    print(f"{share(berth)}\n{drain(berth)}\n{choices}")
    print(f"{RANKS} ranks on {RANKS} devices, nested runs of {len(NESTED)} forms on the same")
    return 0


sys.exit(main())
