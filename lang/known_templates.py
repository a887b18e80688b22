"""What the models of some families were trained to see around each message."""

from __future__ import annotations

from stolon.lang.chat_template import ChatTemplate, ChatTemplateStyle

_ROLES = ("system", "user", "assistant")


def _framed(
    name: str, frame: str, end: str, *, default: str | None = None, stop: bool = True
) -> ChatTemplate:
    """Every role in the same frame, its name in the place of ``%``."""
    table = {role: (frame.replace("%", role), end) for role in _ROLES}
    return ChatTemplate(name, default, table, (end.strip(),) if stop else ())


_CHATML = ("<|im_start|>%\n", "<|im_end|>\n")
_COMMAND = "<|START_OF_TURN_TOKEN|>"
_COMMAND_END = "<|END_OF_TURN_TOKEN|>"
_DEEPSEEK_END = "<｜end▁of▁sentence｜>"

_ALL = (
    ChatTemplate(
        "default",
        None,
        {role: (f"{role.upper()}:", "\n") for role in _ROLES},
    ),
    ChatTemplate(
        "claude",
        None,
        {"system": ("", ""), "user": ("\n\nHuman: ", ""), "assistant": ("\n\nAssistant:", "")},
    ),
    _framed("chatml", *_CHATML),
    _framed("qwen", *_CHATML, default="You are a helpful assistant."),
    _framed("llama-3-instruct", "<|start_header_id|>%<|end_header_id|>\n\n", "<|eot_id|>"),
    _framed("llama-4", "<|header_start|>%<|header_end|>\n\n", "<|eot|>"),
    _framed("granite-3-instruct", "<|start_of_role|>%<|end_of_role|>", "<|end_of_text|>"),
    ChatTemplate(
        "vicuna_v1.1",
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions.",
        {"system": ("", " "), "user": ("USER:", " "), "assistant": ("ASSISTANT:", "</s>")},
    ),
    ChatTemplate(
        "llama-2-chat",
        None,
        {
            "system": ("<<SYS>>\n", "\n<</SYS>>\n\n"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": ("", " </s><s>"),
        },
        style=ChatTemplateStyle.LLAMA2,
    ),
    ChatTemplate(
        "yi-1.5",
        None,
        {
            "system": ("", ""),
            "user": ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            "assistant": ("", "<|im_end|>\n"),
        },
        ("<|im_end|>",),
    ),
    ChatTemplate(
        "gemma-it",
        None,
        {
            "system": ("", ""),
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
    ),
    ChatTemplate(
        "c4ai-command-r",
        None,
        {
            "system": (_COMMAND + "<|SYSTEM_TOKEN|>", _COMMAND_END),
            "user": (_COMMAND + "<|USER_TOKEN|>", _COMMAND_END),
            "assistant": (_COMMAND + "<|CHATBOT_TOKEN|>", _COMMAND_END),
        },
    ),
    ChatTemplate(
        "deepseek-v3",
        None,
        {
            "system": ("", ""),
            "user": ("<｜User｜>", ""),
            "assistant": ("<｜Assistant｜>", _DEEPSEEK_END),
        },
        (_DEEPSEEK_END,),
    ),
)

KNOWN = {template.name: template for template in _ALL}

MEDIA = frozenset(
    {
        "chatml-llava",
        "janus-pro",
        "llama-3-instruct-llava",
        "minicpmo",
        "minicpmv",
        "qwen2-vl",
        "yi-vl",
    }
)
"""Names that programs for models with images use."""

# The first row counts all of whose words are in the model's path, and none of the words after the bar.
_BY_PATH = (
    ("deepseek-v3", "deepseek-v3|base"),
    ("deepseek-v3", "deepseek-r1|base"),
    ("vicuna_v1.1", "vicuna"),
    ("llama-2-chat", "llama-2,chat"),
    ("llama-2-chat", "mistral,instruct"),
    ("llama-2-chat", "mixtral,instruct"),
    ("llama-2-chat", "codellama,instruct"),
    ("llama-3-instruct", "llama-3,instruct"),
    ("llama-4", "llama-4,instruct"),
    ("chatml", "tinyllama"),
    ("qwen", "qwen,chat|llava,vl"),
    ("qwen", "qwen,instruct|llava,vl"),
    ("yi-1.5", "yi-1.5,chat"),
    ("gemma-it", "gemma,-it"),
    ("c4ai-command-r", "c4ai-command-r"),
    ("granite-3-instruct", "granite,instruct"),
)


def known_for(model_path: str) -> str | None:
    """Name of the template of the models whose paths look like this one."""
    path = model_path.lower()
    for name, words in _BY_PATH:
        with_, _, without = words.partition("|")
        if all(word in path for word in with_.split(",")) and not any(
            word in path for word in without.split(",") if word
        ):
            return name
    return None
