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

    // The node whose path is `text`; -1 if there is none. Empty text has no node.
    int64_t find(std::string_view text) const;

    // The length of the longest token that `text` begins with.
    size_t match(std::string_view text) const;

    int64_t count = 0;
    uint32_t longest = 0;  // bytes of the longest token
    std::vector<Node> nodes;
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> bytes;
    std::vector<int64_t> offsets;
    std::vector<uint8_t> use;
};

}  // namespace stolon
