"""`fedddp data get`, against a real server on loopback that can break off, ignore ranges or send the wrong bytes."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fedddp import cli
from fedddp.data import _download, _publishers, mnist
from fedddp.data._publishers import File, Published
from tests.data import writers

CONTENT = bytes(writers.pixels(1_000_000))


@dataclass
class Server:
    files: dict[str, bytes]
    breaks: list[int] = field(default_factory=list)  # after how many bytes to hang up, request by request
    ranges: bool = True
    asked: list[str] = field(default_factory=list)  # the Range of every request
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server({"a.bin": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.asked.append(wanted)
            content = state.files.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            self.wfile.write(body[: state.breaks.pop(0)] if state.breaks else body)

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{running.server_port}"
    thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    running.shutdown()
    thread.join()
    running.server_close()


def published(content: bytes = CONTENT, name: str = "a.bin", **more: tuple[tuple[str, int], ...]) -> Published:
    file = File(f"http://publisher.invalid/{name}", len(content), hashlib.sha256(content).hexdigest(), **more)
    return Published("set", (file,))


def fetch(server: Server, root: Path, wanted: Published | None = None) -> list[str]:
    return _download.get(wanted or published(), root, mirror=server.url, pause=0)


def test_a_file_appears_whole_and_once(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["a.bin"]
    assert fetch(server, tmp_path) == [f"{tmp_path / 'set/a.bin'}: already there"]
    assert server.asked == [""]


def test_a_broken_connection_goes_on_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.breaks = [500_000, 300_000]
    fetch(server, tmp_path)
    assert server.asked == ["", "bytes=500000-", "bytes=800000-"]
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_later_run_goes_on_with_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.breaks = [400_000, *[0] * _download.PATIENCE]
    with pytest.raises(ValueError, match=r"400,000 of 1,000,000 bytes are kept in .*run it again to go on"):
        fetch(server, tmp_path)
    assert not (tmp_path / "set/a.bin").exists()
    server.asked.clear()
    fetch(server, tmp_path)
    assert server.asked == ["bytes=400000-"]
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, [500_000]
    fetch(server, tmp_path)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_corrupted_file_never_appears(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(ValueError, match=r"is not the published file.*it was removed"):
        fetch(server, tmp_path)
    assert list((tmp_path / "set").iterdir()) == []
    server.files["a.bin"] = CONTENT
    fetch(server, tmp_path)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_wrong_part_is_found_out_too(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.bin.part").write_bytes(bytes(1000))
    with pytest.raises(ValueError, match="is not the published file"):
        fetch(server, tmp_path)
    fetch(server, tmp_path)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_file_that_was_damaged_since_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    fetch(server, tmp_path)
    (tmp_path / "set/a.bin").write_bytes(bytes(len(CONTENT)))
    fetch(server, tmp_path)
    assert (tmp_path / "set/a.bin").read_bytes() == CONTENT


def test_a_longer_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT + b"more"
    with pytest.raises(ValueError, match="sends more than the 1,000,000 bytes"):
        fetch(server, tmp_path)
    assert not (tmp_path / "set/a.bin").exists()


def test_what_the_server_has_not_is_said_at_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.bin: the server answers 404"):
        fetch(server, tmp_path, published(name="b.bin"))
    assert len(server.asked) == 1


def test_no_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.bin: the connection failed .*refused"):
        _download.get(published(), tmp_path, mirror="http://127.0.0.1:9", pause=0)


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_an_archive_gives_its_known_files_and_nothing_else(server: Server, tmp_path: Path) -> None:
    link = tarfile.TarInfo("batches/link.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    content = tar(
        (tarfile.TarInfo("batches/readme.html"), b"x"),
        (tarfile.TarInfo("../../escaped.bin"), b"evil"),
        (link, b""),
        (tarfile.TarInfo("batches/one.bin"), b"first"),
        (tarfile.TarInfo("batches/two.bin"), b"second"),
    )
    server.files["set.tar.gz"] = content
    wanted = published(content, "set.tar.gz", members=(("one.bin", 5), ("two.bin", 6)))
    fetch(server, tmp_path / "root", wanted)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"root/set/one.bin": b"first", "root/set/two.bin": b"second"}
    assert "already there" in fetch(server, tmp_path / "root", wanted)[0]
    assert len(server.asked) == 1


def test_an_archive_that_lacks_a_file_gives_none(server: Server, tmp_path: Path) -> None:
    link = tarfile.TarInfo("two.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    server.files["set.tar.gz"] = tar((tarfile.TarInfo("one.bin"), b"first"), (link, b""))
    wanted = published(server.files["set.tar.gz"], "set.tar.gz", members=(("one.bin", 5), ("two.bin", 6)))
    with pytest.raises(ValueError, match=r"lacks two\.bin"):
        fetch(server, tmp_path, wanted)
    assert not (tmp_path / "set/one.bin").exists()


def test_the_command_gets_a_set_that_then_loads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writers.mnist(tmp_path / "theirs", suffix=".gz")
    server.files = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    files = [
        File(f"http://publisher.invalid/{name}", len(content), hashlib.sha256(content).hexdigest())
        for name, content in server.files.items()
    ]
    monkeypatch.setitem(_publishers.SETS, "mnist", Published("mnist", tuple(files)))
    root = str(tmp_path / "mine")
    assert call("data", "list", "--root", root) == 0
    assert "MB to get" in capsys.readouterr().out.splitlines()[0]
    assert call("data", "get", "mnist", "--root", root, "--mirror", server.url) == 0
    assert len(mnist.Source(root=root).load().train) == 50
    capsys.readouterr()
    assert call("data", "list", "--root", root) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("there")


def test_the_command_lists_what_can_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "get", "imagenet") == 2
    assert "data get imagenet: choose from mnist, fashion_mnist, cifar10" in capsys.readouterr().err
    assert call("data", "get") == 2
    assert "name a set" in capsys.readouterr().err


def call(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return ended.value.code


def test_the_published_table_is_well_formed() -> None:
    for name, wanted in _publishers.SETS.items():
        assert wanted.files, name
        for file in wanted.files:
            assert file.url.startswith("http")
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 1000


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "credit", "heart"])
def test_the_table_has_the_sums_of_the_real_files(data_root: Path, name: str) -> None:
    for file in _publishers.SETS[name].files:
        content = (data_root / _publishers.SETS[name].folder / file.name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
