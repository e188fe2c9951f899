"""The data sets that can be loaded: files, checksums, public origins, licences."""

from dataclasses import dataclass, field

__all__ = ["CATALOGUE", "NAMES", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One data set: where it may be, and how to know that it is the right one."""

    file: str
    digest: str
    title: str
    source: str
    licence: str
    openml: int | None = None  # its number there
    openml_digest: bool = True  # whether its values there must have the same digest
    where: str = ""
    details: dict[str, str] = field(default_factory=dict)  # as `fewer.datasets.files.details`


CATALOGUE = {
    "mnist": Entry(
        "mnist.npz",
        "55693ac5689fc4585d0f49a9954ff9fd0045f8453b3d75f7303efe3bb566e53b",
        "Handwritten digits, 28 x 28 grey levels, 60,000 to train and 10,000 to test",
        "Y. LeCun, C. Cortes, C. Burges, the MNIST database",
        "CC BY-SA 3.0",
        openml=554,
        details={
            "names": "4c3815f2cf5e6b18",
            "target_names": "29dd21f55e4611d4",
            "official": "ad42e783a03dd577",
        },
    ),
    "fashion": Entry(
        "fashion_mnist.npz",
        "76d42a9053b28c43abce4357c5ebf39d95323efa643c7f2e65bcf03faf2f5b68",
        "Images of clothes, 28 x 28 grey levels, 60,000 to train and 10,000 to test",
        "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST (2017)",
        "MIT",
        openml=40996,
        details={
            "names": "4c3815f2cf5e6b18",
            "target_names": "39a730d3fc82d698",
            "official": "50fa079dbe37dd1c",
        },
    ),
    "isolet": Entry(
        "isolet.npz",
        "5d4a14f9797c7370cfc88057490b9f54e465e80a569d894666cc6207e1295f6c",
        "Spoken names of the 26 letters, 617 acoustic features, five groups of speakers",
        "R. Cole, M. Fanty, UCI Machine Learning Repository, ISOLET",
        "CC BY 4.0",
        openml=300,
        details={
            "names": "914c81b95a8aaa13",
            "target_names": "cfa4f846a6dbeb24",
            "groups": "fe84029af70bbe2f",
            "official": "a570c96c1489d192",
        },
    ),
    "coil20": Entry(
        "coil20_20x20.npz",
        "8eaf2db4071c05ccf8a2924e57d57eeac2fa8b7dff79e0cab9b05986d47f279e",
        "20 objects x 72 views, grey levels, nearest-neighbour resize to 20 x 20",
        "S. A. Nene, S. K. Nayar, H. Murase, Technical Report CUCS-005-96 (1996)",
        "free for research use",
        where="the processed images are at Columbia University's CAVE laboratory, COIL-20",
        details={
            "names": "d5c0c1e2e62e395a",
            "target_names": "88f50f4e4ccd0fb0",
        },
    ),
    "mice": Entry(
        "mice_protein.npz",
        "a45e5b11407f7bc87d5e3821f076e6eae0f8ac59af5dd6e44079ede5f1c779ea",
        "Expression of 77 proteins in the cortex of 72 mice, 15 measurements each",
        "C. Higuera, K. J. Gardiner, K. J. Cios (PLoS ONE, 2015), UCI Machine Learning Repository",
        "CC BY 4.0",
        openml=40966,
        details={
            "names": "be307f1742031e89",
            "target_names": "9b11012853abf4db",
            "groups": "942e7327a3806084",
        },
    ),
    "har": Entry(
        "har.npz",
        "12134ade28d2ab5d3fe83101c18192dc46594596f4c29bc6248ae9e896b8ea01",
        "Activities of 30 people from the sensors of a phone, 561 features",
        "D. Anguita and others (ESANN 2013), UCI Machine Learning Repository",
        "CC BY 4.0",
        openml=1478,
        openml_digest=False,  # our copy was recomputed from the signals; 12 columns differ
        details={
            "names": "a099558a18597075",
            "target_names": "ab9c6b59afa831ca",
            "groups": "ab61c7cb4bdc9c38",
            "official": "aaef47a38407a5cd",
        },
    ),
    "tcga": Entry(
        "tcga_11cohorts_rnaseq.npz",
        "dd950c590812bfd922c6e319db6892928c637261c228396f3d8459a31bbf0bab",
        "RNA-seq of 602 tumours of 11 kinds and 602 normal samples beside them, 3556 genes",
        "TCGA Research Network; selection of Y. Guo, H. Yu and others (MetaGSCA, 2020)",
        "open access",
        where="the counts are in the supplement of MetaGSCA and at the Genomic Data Commons",
        details={
            "names": "fef9ce57d42027b9",
            "target_names": "d2af9d210ea78fc8",
            "groups": "66b54251ef4350ca",
            "landmarks": "8d347151dc3bd9f8",
        },
    ),
    "luad": Entry(
        "tcga_luad_rnaseq.npz",
        "dc112544f32b7dc8cbfb627c5caafa80e1827bb8b179ec272cb039229966631d",
        "RNA-seq of 517 lung adenocarcinomas and 59 normal samples, 20,502 genes",
        "TCGA Research Network, level-3 RSEM gene counts",
        "open access",
        where="the counts are at the Genomic Data Commons, project TCGA-LUAD",
        details={
            "names": "79d7cd5330a13538",
            "target_names": "8ec0a8926b024230",
            "groups": "5737cd4b72d9f0fb",
            "landmarks": "50bb8901be150284",
        },
    ),
}

NAMES = (*CATALOGUE, "digits", "geo", "geo-synthetic")
