import doctest
import hashlib

from paged_serve.protocol import block_hash
from paged_serve.protocol.block_hash import chain_blocks, chain_root
from paged_serve.protocol.messages.message import pack_ids


def test_the_documented_encoding_is_the_real_one():
    root = hashlib.sha256(b"paged-serve/1 block_size=2 salt=pepper").digest()
    first = hashlib.sha256(root + pack_ids([1, 2])).digest()
    second = hashlib.sha256(first + pack_ids([3, 4])).digest()
    assert chain_blocks(chain_root(2, "pepper"), pack_ids([1, 2, 3, 4, 5]), 2) == [first, second]


def test_a_block_hash_covers_the_whole_prefix():
    a, b = (chain_blocks(chain_root(2, ""), pack_ids(ids), 2) for ids in ([1, 2, 3, 4], [9, 2, 3, 4]))
    assert a[0] != b[0]
    assert a[1] != b[1]


def test_salt_and_block_size_separate_hashes():
    roots = {chain_root(size, salt) for size in (16, 32) for salt in ("", "a", "b")}
    assert len(roots) == 6


def test_docstring_examples_hold():
    assert doctest.testmod(block_hash).failed == 0
