"""Which file system a path lies on: SQLite's locks cannot be trusted on network ones."""

from pathlib import Path

NETWORK_FILESYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
        "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs", "wekafs",
        "pvfs2", "orangefs", "panfs", "fhgfs", "daos", "fuse.dfuse", "virtiofs", "vboxsf", "ncpfs",
    }
)  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")


def network_filesystem(path: Path, mounts_text: str | None = None) -> str | None:
    """The kind of network file system that `path` lies on, or none.

    Args:
        path: file or folder, which need not exist yet.
        mounts_text: lines as in `/proc/self/mounts`; read from there when absent.
    """
    if mounts_text is None:
        try:
            mounts_text = _MOUNTS.read_text()
        except OSError:
            return None  # not Linux: nothing is known, and a wrong warning helps nobody
    where = path.absolute().resolve()
    best: tuple[int, str] = (-1, "")
    for line in mounts_text.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # the kernel writes a space in a mount point as \040
        mount = Path(fields[1].replace("\\040", " ").replace("\\011", "\t"))
        if where.is_relative_to(mount) and len(mount.parts) >= best[0]:
            best = (len(mount.parts), fields[2])
    return best[1] if best[1] in NETWORK_FILESYSTEMS else None
