// The tokens of a vocabulary as a tree of bytes, in preorder: a walk over it needs no recursion, and
// leaves out a subtree by one jump.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace stolon {

class Trie {
  public:
    // Token i has the bytes [offsets[i], offsets[i + 1]); `use` tells which tokens count (with bytes).
    Trie(const uint8_t* bytes, const int64_t* offsets, const uint8_t* use, int64_t count);

    struct Node {
        uint8_t byte;
        uint16_t depth;      // 1 at the first byte
        uint32_t skip;       // the node after this one's subtree
        uint32_t first, last;  // its tokens, in `tokens`
    };

    std::string_view bytes_of(int64_t token) const {
        return {reinterpret_cast<const char*>(bytes.data()) + offsets[token],
                static_cast<size_t>(offsets[token + 1] - offsets[token])};
    }

    // What the texts below a node are made of: read from there on, as texts of their own.
    struct Below {
        uint64_t ascii[2];  // the bytes under 128 that occur
        uint16_t chars;     // characters of the longest, one that is cut off included
        bool wide;          // some have other characters
        bool text;          // each is UTF-8, or the beginning of it
    };

    // The end of a node's subtree in `tokens`; its own tokens come first.
    uint32_t tokens_end(uint32_t node) const {
        uint32_t after = nodes[node].skip;
        return after < nodes.size() ? nodes[after].first : static_cast<uint32_t>(tokens.size());
    }

    // The node whose path is `text`; -1 if there is none. Empty text has no node.
    int64_t find(std::string_view text) const;

    // The length of the longest token that `text` begins with.
    size_t match(std::string_view text) const;

    // The fewest tokens that spell `text`. False, and no change, if none do.
    bool spell(std::string_view text, std::vector<uint32_t>& out) const;

    int64_t count = 0;
    uint32_t longest = 0;  // bytes of the longest token
    std::vector<Node> nodes;
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> bytes;
    std::vector<int64_t> offsets;
    std::vector<uint8_t> use;
    std::vector<Below> below;    // by node
    std::vector<uint32_t> row;   // a bit for each of `tokens`

  private:
    // The first of the siblings from `at` on that has `byte`; `end`, that of their parent's subtree, if none has.
    uint32_t sibling(uint32_t at, uint32_t end, char byte) const {
        while (at < end && nodes[at].byte != static_cast<uint8_t>(byte)) at = nodes[at].skip;
        return at;
    }
    void measure();
};

// UTF-8 as an automaton: 0 is between characters, negative is no UTF-8. The other states are within one.
inline int utf8_next(int state, uint8_t byte) {
    struct Range {
        uint8_t low, high, to;
    };
    constexpr Range kRest[] = {{0x80, 0xBF, 0}, {0x80, 0xBF, 1}, {0x80, 0xBF, 2}, {0xA0, 0xBF, 1},
                               {0x80, 0x9F, 1}, {0x90, 0xBF, 2}, {0x80, 0x8F, 2}};
    if (state > 0) {
        const Range& range = kRest[state - 1];
        return byte >= range.low && byte <= range.high ? range.to : -1;
    }
    if (byte < 0x80) return 0;
    if (byte < 0xC2 || byte > 0xF4) return -1;
    if (byte < 0xE0) return 1;
    if (byte < 0xF0) return byte == 0xE0 ? 4 : byte == 0xED ? 5 : 2;
    return byte == 0xF0 ? 6 : byte == 0xF4 ? 7 : 3;
}

constexpr int kUtf8States = 8;

}  // namespace stolon
