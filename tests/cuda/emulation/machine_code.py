"""What the compiler left in machine code of its kernels, read from the file that it makes (ELF)."""

from __future__ import annotations

import struct

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, …
_SYMBOL_BYTES = 24
_SIZED, _FRAME_SIZE = 4, 0x11  # of attributes: those that say their own length; a kernel and its bytes


def frame_bytes(code: bytes) -> dict[str, int]:
    """Of each kernel, what it keeps in memory because there were no registers for it (or because it is an
    array whose places aren't known), in bytes of a thread.
    """
    sections = _sections(code)
    symbols = sections[".symtab"]
    texts = next(section for section in sections.values() if section["number"] == symbols["link"])
    names = [
        _text(code, texts["offset"] + struct.unpack_from("<I", code, symbols["offset"] + at)[0])
        for at in range(0, symbols["size"], _SYMBOL_BYTES)
    ]
    found = {}
    position, end = (
        sections[".nv.info"]["offset"],
        sections[".nv.info"]["offset"] + sections[".nv.info"]["size"],
    )
    while position < end:
        form, attribute, size = struct.unpack_from("<BBH", code, position)
        position += 4
        if form == _SIZED:
            if attribute == _FRAME_SIZE:
                symbol, frame = struct.unpack_from("<II", code, position)
                found[names[symbol]] = frame
            position += size
    return found


def _sections(code: bytes) -> dict[str, dict[str, int]]:
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(code, start + size * number) for number in range(count)]
    return {
        _text(code, headers[of_names][4] + header[0]): {
            "number": number,
            "offset": header[4],
            "size": header[5],
            "link": header[6],
        }
        for number, header in enumerate(headers)
    }


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()
