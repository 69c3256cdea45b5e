"""Passwords and TLS on MySQL: what a rogue server may learn, and whose certificate is believed."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dibs import BadRequest, Dibs, DibsError, NewJob, StoreRefused, StoreUnavailable
from dibs.engines import retries
from dibs.outbox import Outbox
from tests.support.fault_stores import face_of
from tests.support.servers import HOST, MissingServer, MySQLServer, not_tested

PASSWORD = "hunter2"


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- A server that only wants to know the password ------------------------------------------------


class Rogue:
    """A listener that greets as MySQL does, without TLS, and then asks for another way to log in."""

    def __init__(self, method: bytes) -> None:
        self.heard = b""
        self._method = method
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(3)
                self._talk(caller)

    def _talk(self, caller: socket.socket) -> None:
        try:
            caller.sendall(_packet(0, _greeting()))
            self.heard += caller.recv(4096)
            caller.sendall(_packet(2, b"\xfe" + self._method + b"\0" + b"\x00Password: "))
            self.heard += caller.recv(4096)
        except OSError:
            return


def _packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def _greeting() -> bytes:
    """Protocol 10; it can everything but TLS."""
    can = 0xFFFFFFFF & ~0x0800 & ~0x0020
    parts = [
        b"\x0a9.0.0\0",
        struct.pack("<I", 1),
        b"12345678\0",
        struct.pack("<H", can & 0xFFFF),
        b"\x2d\x02\x00",
    ]
    parts += [struct.pack("<H", can >> 16), b"\x15", bytes(10), b"123456789012\0", b"mysql_native_password\0"]
    return b"".join(parts)


@pytest.fixture(params=[b"mysql_clear_password", b"dialog"], ids=["clear", "dialog"])
def rogue(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rogue]:
    monkeypatch.setattr(retries, "PAUSES", ())
    rogue = Rogue(request.param)
    yield rogue
    rogue.end()


def test_a_server_without_tls_never_learns_the_password(rogue: Rogue, face: str) -> None:
    app = Dibs(f"mysql://me:{PASSWORD}@{HOST}:{rogue.port}/shop")

    with (
        face_of(app, face) as caller,
        pytest.raises(StoreRefused, match=r"in clear text.*\?ssl=verify") as told,
    ):
        caller.enqueue(NewJob("work"))

    assert b"shop" in rogue.heard  # it did talk to us
    assert PASSWORD.encode() not in rogue.heard
    assert PASSWORD not in str(told.value)


def test_a_server_without_tls_hears_nothing_where_tls_is_asked_for(rogue: Rogue, face: str) -> None:
    app = Dibs(f"mysql://me:{PASSWORD}@{HOST}:{rogue.port}/shop?ssl=verify")

    with face_of(app, face) as caller, pytest.raises(StoreUnavailable):
        caller.enqueue(NewJob("work"))

    assert b"shop" not in rogue.heard
    assert PASSWORD.encode() not in rogue.heard


def test_nor_does_it_from_an_outbox(rogue: Rogue, face: str) -> None:
    outbox = Outbox(f"mysql://me:{PASSWORD}@{HOST}:{rogue.port}/shop?ssl=verify")

    with pytest.raises(DibsError):
        outbox.sync.counts() if face == "sync" else asyncio.run(outbox.counts())

    assert PASSWORD.encode() not in rogue.heard


@pytest.mark.parametrize("driver", ["", "+asyncpg", "+psycopg"])
def test_an_outbox_reads_the_certificates_of_a_url_as_the_store_does(driver: str, face: str) -> None:
    outbox = Outbox(f"postgresql{driver}://me@{HOST}:1/shop?sslmode=verify-full&sslrootcert=/no/such.pem")

    with pytest.raises((DibsError, OSError), match=r"such\.pem|does not answer"):
        outbox.sync.counts() if face == "sync" else asyncio.run(outbox.counts())


def test_only_tls_that_verifies_can_be_asked_for() -> None:
    app = Dibs("mysql://me@localhost/shop?ssl=maybe")

    with pytest.raises(BadRequest, match="ssl=maybe"):
        app.sync.counts()


# -- A server with a certificate ------------------------------------------------------------------


def _certificate(
    folder: Path, name: str, signed_by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
):  # type: ignore[no-untyped-def]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if signed_by is None else (signed_by[0].subject, signed_by[1])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server's certificate by it, and another authority."""
    folder = tmp_path_factory.mktemp("tls")
    ours = _certificate(folder, "ca", None)
    _certificate(folder, "server", ours)
    _certificate(folder, "other", None)
    return folder


@pytest.fixture(scope="module")
def secure_url(authority: Path) -> Iterator[str]:
    files = {"ssl-ca": "ca.pem", "ssl-cert": "server.pem", "ssl-key": "server.key"}
    try:
        server = MySQLServer({name: str(authority / file) for name, file in files.items()})
    except MissingServer as error:
        not_tested[MySQLServer.name] = str(error)
        pytest.skip(str(error))
    with server:
        server._do(f"create user me@`%` identified by '{PASSWORD}' require ssl")
        server._do("grant all on *.* to me@`%`")
        database = server.fresh_database().rpartition("/")[2]
        migrator = Dibs(server.url(database)).sync
        migrator.migrate()
        migrator.close()
        yield f"mysql://me:{PASSWORD}@{HOST}:{server.port}/{database}"


def test_a_server_of_the_systems_authorities_is_believed(
    secure_url: str, authority: Path, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))

    with face_of(Dibs(f"{secure_url}?ssl=verify"), face) as caller:
        assert caller.enqueue(NewJob("work"))[0].is_new


def test_a_server_of_an_authority_in_a_file_is_believed(secure_url: str, authority: Path, face: str) -> None:
    with face_of(Dibs(f"{secure_url}?ssl_ca={authority}/ca.pem"), face) as caller:
        assert caller.enqueue(NewJob("work"))[0].is_new


@pytest.mark.parametrize("where", ["?ssl=verify", "?ssl_ca={}/other.pem"])
def test_a_server_of_nobodys_authority_is_not(
    secure_url: str, authority: Path, face: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", ())
    app = Dibs(secure_url + where.format(authority))

    with face_of(app, face) as caller, pytest.raises(StoreUnavailable, match="certificate"):
        caller.enqueue(NewJob("work"))
