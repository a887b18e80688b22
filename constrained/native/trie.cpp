#include "trie.h"

#include <algorithm>
#include <stdexcept>

namespace stolon {

constexpr size_t kLongest = 4096;

Trie::Trie(const uint8_t* data, const int64_t* ends, const uint8_t* used, int64_t n) : count(n) {
    if (n < 0 || n >= (int64_t{1} << 31) || ends[0] != 0)
        throw std::invalid_argument("a vocabulary's tables are not consistent");
    for (int64_t i = 0; i < n; i++)
        if (ends[i + 1] < ends[i]) throw std::invalid_argument("a vocabulary's offsets go back");
    offsets.assign(ends, ends + n + 1);
    bytes.assign(data, data + offsets[n]);
    use.assign(used, used + n);
    for (int64_t i = 0; i < n; i++) {
        size_t length = offsets[i + 1] - offsets[i];
        if (length == 0 || length > kLongest) use[i] = 0;
        if (use[i]) tokens.push_back(static_cast<uint32_t>(i));
    }
    std::sort(tokens.begin(), tokens.end(), [&](uint32_t a, uint32_t b) {
        int order = bytes_of(a).compare(bytes_of(b));
        return order != 0 ? order < 0 : a < b;
    });

    // Tokens come in the order of their bytes, so each adds nodes behind those it shares with the one before.
    std::vector<uint32_t> path;  // nodes of the token before
    std::string_view before;
    for (uint32_t at = 0; at < tokens.size(); at++) {
        std::string_view text = bytes_of(tokens[at]);
        size_t shared = 0;
        while (shared < text.size() && shared < before.size() && text[shared] == before[shared]) shared++;
        for (; path.size() > shared; path.pop_back()) nodes[path.back()].skip = static_cast<uint32_t>(nodes.size());
        for (size_t i = shared; i < text.size(); i++) {
            path.push_back(static_cast<uint32_t>(nodes.size()));
            nodes.push_back({static_cast<uint8_t>(text[i]), static_cast<uint16_t>(i + 1), 0, at, at});
        }
        nodes[path.back()].last = at + 1;
        longest = std::max(longest, static_cast<uint32_t>(text.size()));
        before = text;
    }
    for (uint32_t node : path) nodes[node].skip = static_cast<uint32_t>(nodes.size());
    measure();
}

void Trie::measure() {
    row.assign((count + 31) / 32, 0);
    for (uint32_t token : tokens) row[token >> 5] |= 1u << (token & 31);
    below.resize(nodes.size());
    std::vector<uint8_t> valid(nodes.size());  // the states of UTF-8 from which all texts below go on
    for (size_t at = nodes.size(); at-- > 0;) {
        Below& here = below[at];
        here = {};
        valid[at] = 0xFF;
        for (uint32_t child = at + 1; child < nodes[at].skip; child = nodes[child].skip) {
            uint8_t byte = nodes[child].byte;
            const Below& there = below[child];
            here.ascii[0] |= there.ascii[0];
            here.ascii[1] |= there.ascii[1];
            here.wide |= there.wide || byte >= 0x80;
            if (byte < 0x80) here.ascii[byte >> 6] |= uint64_t{1} << (byte & 63);
            bool begins = (byte & 0xC0) != 0x80;
            here.chars = std::max<uint16_t>(here.chars, there.chars + begins);
            for (int state = 0; state < kUtf8States; state++) {
                int to = utf8_next(state, byte);
                if (to < 0 || !(valid[child] >> to & 1)) valid[at] &= ~(1u << state);
            }
        }
        here.text = valid[at] & 1;
    }
}

int64_t Trie::find(std::string_view text) const {
    uint32_t at = 0, end = static_cast<uint32_t>(nodes.size());
    int64_t found = -1;
    for (char c : text) {
        at = sibling(at, end, c);
        if (at >= end) return -1;
        found = at;
        end = nodes[at].skip;
        at++;
    }
    return found;
}

size_t Trie::match(std::string_view text) const {
    uint32_t at = 0, end = static_cast<uint32_t>(nodes.size());
    size_t best = 0;
    for (size_t i = 0; i < text.size(); i++) {
        at = sibling(at, end, text[i]);
        if (at >= end) break;
        if (nodes[at].first < nodes[at].last) best = i + 1;
        end = nodes[at].skip;
        at++;
    }
    return best;
}

bool Trie::spell(std::string_view text, std::vector<uint32_t>& out) const {
    size_t n = text.size();
    constexpr uint32_t kNone = 0xFFFFFFFF;
    std::vector<uint32_t> cost(n + 1, kNone), token(n + 1, 0);  // of the text from each place on
    cost[n] = 0;
    for (size_t from = n; from-- > 0;) {
        uint32_t at = 0, end = static_cast<uint32_t>(nodes.size());
        for (size_t i = from; i < n; i++) {
            at = sibling(at, end, text[i]);
            if (at >= end) break;
            const Node& here = nodes[at];
            if (here.first < here.last && cost[i + 1] < cost[from]) {
                cost[from] = cost[i + 1] + 1;
                token[from] = tokens[here.first];
            }
            end = here.skip;
            at++;
        }
    }
    if (cost[0] == kNone) return false;
    out.clear();
    for (size_t at = 0; at < n; at += bytes_of(token[at]).size()) out.push_back(token[at]);
    return true;
}

}  // namespace stolon
