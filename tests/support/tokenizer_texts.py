"""Texts of many scripts that tokenizers are trained and compared on, and files of tokenizers alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gguf import GGUFWriter
from hypothesis import strategies as st

from stolon.srt.loaders.gguf import GGUFFile

TEXTS = [
    "Hello world, the quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll; HE'S here, don't 'tis",
    "Ça va très bien — naïve façade, Straße, Grüße",
    "Привет, как дела? Ёлка и ещё раз привет",
    "Γειά σου Κόσμε, καλημέρα κόσμε",
    "שלום עולם, שלום לך",
    "مرحبا بالعالم ١٢٣٤٥ كيف حالك",
    "नमस्ते दुनिया, कैसे हो १२३",
    "ภาษาไทยสวัสดีชาวโลก",
    "日本語の文章です。カタカナと漢字１２３",
    "你好，世界！今天天气怎么样？",
    "안녕하세요 세계, 한국어 문장입니다",
    "ქართული Հայերեն አማርኛ தமிழ்",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇵🇹 👍🏽 ❤️ 1️⃣",
    "e\u0301 a\u0308 Z\u0334\u0322 combining, \ue000\uf8ff private \U0010fffd",
    "zero\u200bwidth \u00a0nbsp \u3000wide \u2028line \u0085next",
    "def f(x):\n    if x > 0:\n        return [i**2 for i in range(10)]\n\treturn {'a': 1}\n",
    '{"name": "Ann", "age": 34, "tags": ["x", "y"], "ok": true}',
    " ",
    "   ",
    " a  b   c    d ",
    "x" + " " * 50 + "y",
    "\n\n\n a\r\nb\r\n\r\nc\r \t\t\n  \n",
    "0 12 123 1234 12345 1234567890 3.14159 1,000,000 x1y22 ½²①",
    "!!! ... ?!?! $%^&*() === <<<>>> // --",
    "aaaaaaaaaaaaaaaa abababababab hahahaha thethethe",
    "\x00\x01\x7f",
    "<|im_start|>user\nHi<|im_end|> <s> </s> <0x0A> <unk>",
]
CORPUS = TEXTS * 3
SPECIALS = ["<|im_start|>", "<|im_end|>"]
_CHARS = st.sampled_from("aetho TH'’1234 \n\t\r.,é日<|>_▁ΣЖ\u0301🎉\u200d") | st.characters(
    exclude_categories=["Cs"]
)
any_text = st.text(_CHARS, max_size=40)


def tokenizer_file(path: Path, write: Callable[[GGUFWriter], None]) -> GGUFFile:
    """A GGUF file that holds what `write` adds, and no tensors."""
    writer = GGUFWriter(path, "llama")
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GGUFFile.open(path)
