"""Certificate authorities, certificates and kubeconfigs of the test cluster."""

import base64
import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
VALIDITY = datetime.timedelta(days=365)  # cert-controller renews its authority when less than 90 days are left


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, path: Path) -> "CertificatePair":
        """Write `<path>.crt` and `<path>.key`, and return the pair; only the owner can read the key."""
        path.with_suffix(".crt").write_bytes(self.certificate)
        path.with_suffix(".key").touch(mode=0o600)
        path.with_suffix(".key").write_bytes(self.key)
        return self

    @classmethod
    def read(cls, path: Path) -> "CertificatePair":
        return cls(path.with_suffix(".crt").read_bytes(), path.with_suffix(".key").read_bytes())


def generate_key(kind: str = "ec") -> Key:
    """A new private key: "ec" or "rsa"."""
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def encode_private_key(key: Key) -> bytes:
    """The key as PEM, in PKCS#1 for RSA.

    The operators' certificate rotation rejects other forms as "not well-formed".
    """
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def encode_public_key(key: Key) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def create_authority(name: str, kind: str = "ec") -> CertificatePair:
    """A self-signed authority with its own name as SAN, which cert-controller requires; `kind` as in `generate_key`."""
    key = generate_key(kind)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        build_certificate(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(usage, critical=True)
    )
    return CertificatePair(encode_certificate(builder.sign(key, hashes.SHA256())), encode_private_key(key))


def issue_certificate(
    authority: CertificatePair, name: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()
) -> CertificatePair:
    """A certificate for a user in groups (client) and for host names and addresses (server)."""
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, Key)
    key = generate_key("rsa" if isinstance(signer, rsa.RSAPrivateKey) else "ec")
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    issuer = x509.load_pem_x509_certificate(authority.certificate).subject
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = build_certificate(x509.Name(subject), issuer, key).add_extension(
        x509.ExtendedKeyUsage(uses), critical=False
    )
    names = [build_alternative_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return CertificatePair(encode_certificate(builder.sign(signer, hashes.SHA256())), encode_private_key(key))


def build_certificate(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    """A certificate without extensions and signature, valid from an hour ago."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALIDITY)
    )


def build_alternative_name(host: str) -> x509.GeneralName:
    """The subject alternative name of an address or a host name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def encode_certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def render_kubeconfig(server: str, authority: CertificatePair, client: CertificatePair, user: str) -> str:
    """A self-contained kubeconfig, as YAML."""
    context = f"{user}@torchyard"
    cluster = {"server": server, "certificate-authority-data": encode_base64(authority.certificate)}
    credentials = {
        "client-certificate-data": encode_base64(client.certificate),
        "client-key-data": encode_base64(client.key),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "torchyard", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": context, "context": {"cluster": "torchyard", "user": user}}],
            "current-context": context,
        }
    )
