"""The guests' initramfs: BusyBox, kernel modules, the programs under test, and the libraries all of them need.

Programs keep the paths that they have on this machine, so that what was compiled into them (the folder of the test
processes, the tool's own libraries) holds in the guest too.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

# crc32_generic: rdma_rxe needs it and does not say so. virtio_console: the host's way into the guest.
MODULES = ["virtio_pci", "virtio_console", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm"]
HIDDEN = ["/dev", "/proc", "/sys"]  # the guest mounts over them
SYSTEM_PROGRAMS = ["ip", "rdma", "ibv_devinfo", "ibv_rc_pingpong"]
HERE = Path(__file__).resolve().parent


class MissingPart(Exception):
    """The machine lacks something that the guests need; the message says what to install."""


def find_program(name):
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        raise MissingPart(f"there is no '{name}': run scripts/setup kernel")
    return Path(found)


def find_kernel():
    """(image, release) of the newest installed kernel that has rdma_rxe."""
    versions = sorted(Path("/lib/modules").glob("*"), key=lambda path: [
        int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])
    for modules in reversed(versions):
        image = Path("/boot") / f"vmlinuz-{modules.name}"
        if image.exists() and list(modules.glob("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*")):
            if not os.access(image, os.R_OK):
                raise MissingPart(f"{image} is not readable for this user: sudo chmod +r {image}")
            return image, modules.name
    raise MissingPart("no kernel with rdma_rxe is installed in /boot and /lib/modules: run scripts/setup kernel")


def _module_files(release):
    """The files of the modules, each behind those that it needs."""
    files = []
    for module in MODULES:
        shown = subprocess.run([find_program("modprobe"), "--set-version", release, "--show-depends", module],
                               check=True, capture_output=True, text=True).stdout
        for line in shown.splitlines():
            word, _, rest = line.partition(" ")
            path = rest.split()[0] if word == "insmod" else None  # else it is built in
            if path and path not in files:
                files.append(path)
    return files


def _libraries(program):
    shown = subprocess.run(["ldd", program], capture_output=True, text=True)
    return re.findall(r"(/\S+) \(0x", shown.stdout)


def _copy(source, root, strip=False):
    target = root / str(source).lstrip("/")
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Debug symbols are nine tenths of a program, and the guest's memory holds the image twice.
    if not strip or subprocess.run(["strip", "-s", "-o", target, source], capture_output=True).returncode != 0:
        shutil.copy(source, target)


def _provider_files():
    """What libibverbs needs to drive soft-RoCE: the provider and the file that names it."""
    settings = Path("/etc/libibverbs.d/rxe.driver")
    if not settings.exists():
        raise MissingPart(f"there is no {settings}: run scripts/setup kernel")
    for folder in ("/usr/lib/x86_64-linux-gnu/libibverbs", "/usr/lib64/libibverbs"):
        providers = list(Path(folder).glob("librxe-*.so"))
        if providers:
            return [settings, *providers]
    raise MissingPart("there is no librxe provider of libibverbs: run scripts/setup kernel")


def build(folder, programs):
    """Writes FOLDER/initramfs."""
    _, release = find_kernel()
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("dev", "proc", "sys", "tmp", "run", "etc", "bin", "modules", "root"):
        (root / name).mkdir(parents=True)

    shutil.copy(find_program("busybox"), root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    for name in ("init", "serve"):
        shutil.copy(HERE / "guest" / name, root / name)
        (root / name).chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")

    order = []
    for path in _module_files(release):
        shutil.copy(path, root / "modules")
        order.append(Path(path).name)
    (root / "modules/order").write_text("\n".join(order) + "\n")

    ours = [Path(program) for program in programs]
    for path in ours:
        if any(path.is_relative_to(hidden) for hidden in HIDDEN):
            raise MissingPart(f"{path} lies where the guest has files of its own: move the checkout elsewhere")
    system = [find_program(name) for name in SYSTEM_PROGRAMS] + _provider_files()
    for path in ours:
        _copy(path, root, strip=True)
    for path in system:
        _copy(path, root)
    for path in ours + system:
        for library in _libraries(path):
            _copy(library, root)

    # Not compressed: unpacking costs an emulated processor more than loading.
    with open(folder / "initramfs", "wb") as out:
        names = subprocess.run(["find", ".", "-print0"], cwd=root, check=True, capture_output=True).stdout
        subprocess.run(["cpio", "--null", "--create", "--format=newc", "--owner=0:0", "--quiet"], cwd=root, check=True,
                       input=names, stdout=out)
    shutil.rmtree(root)
