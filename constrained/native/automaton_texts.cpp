// The texts that an automaton tells of itself: what must come, what may still join the tail, a shortest ending.
#include <algorithm>

#include "automaton.h"

namespace stolon {

namespace {

constexpr size_t kPicked = 6;  // first bytes beyond the tail, at each position of it

// How well a byte reads, for texts that the automaton writes itself.
int liking(int byte) {
    if ((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9')) return 4;
    if (byte >= 'A' && byte <= 'Z') return 3;
    if (byte > ' ' && byte < 127) return 2;
    return byte == ' ' ? 1 : 0;
}

}  // namespace

int Automaton::live_byte(int32_t state) const {
    int byte = -1;
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        const Program::Node& node = program_.nodes[configs_[members_[m]].node];
        for (uint32_t e = node.first; e < node.last; e++) {
            const Program::Edge& edge = program_.edges[e];
            if (edge.low != edge.high || (byte >= 0 && byte != edge.low)) return 256;
            byte = edge.low;
        }
    }
    return byte;
}

std::pair<std::string, int32_t> Automaton::forced(int32_t state, size_t limit) {
    work_ = 0;
    std::string text;
    while (text.size() < limit && !states_[state].accepting) {
        int byte = live_byte(state);
        if (byte < 0 || byte > 255) break;
        int32_t to = next(state, static_cast<uint8_t>(byte));
        if (to < 0) return {text, kOver};
        text.push_back(static_cast<char>(byte));
        state = to;
    }
    return {text, state};
}

size_t Automaton::mergeable(int32_t state, std::string_view tail, size_t count, std::vector<std::string>& more) {
    size_t found = tail.size();
    size_t begin = tail.size() > trie_->longest ? tail.size() - trie_->longest : 0;
    state = coarse(state);
    if (state < 0) return begin;
    work_ = 0;
    std::vector<std::string> beyond;
    for (size_t at = begin; at < tail.size(); at++) {
        int64_t root = trie_->find(tail.substr(at));
        if (root < 0) continue;
        size_t depth = tail.size() - at;
        size_t branch = 0;  // the node of the first byte beyond the tail
        beyond.clear();
        path_[0] = state;
        for (size_t n = root + 1; n < trie_->nodes[root].skip;) {
            const Trie::Node& node = trie_->nodes[n];
            if (node.depth == depth + 1) branch = n;
            int32_t to = next(path_[node.depth - depth - 1], node.byte);
            if (to < 0) {
                // At a limit nothing is known: count it as allowed.
                if (to == kOver) return begin;
                n = node.skip;
                continue;
            }
            path_[node.depth - depth] = to;
            n++;
            if (node.first < node.last) {
                // One for each first byte is enough.
                beyond.emplace_back(trie_->bytes_of(trie_->tokens[node.first]).substr(depth));
                n = trie_->nodes[branch].skip;
            }
        }
        if (beyond.empty()) continue;
        found = std::min(found, at);
        // A few of them, from all over the bytes.
        size_t picked = std::min(beyond.size(), kPicked);
        for (size_t i = 0; i < picked && more.size() < count; i++) more.push_back(beyond[i * beyond.size() / picked]);
    }
    // What is on the left of a place that no token of the text crosses doesn't depend on what is on its right.
    for (size_t at = found; at-- > 0 && found - at <= trie_->longest;)
        if (at + trie_->match(tail.substr(at)) > found) found = at;
    return found;
}

int64_t Automaton::after(int64_t loop, const Config& config) const {
    int64_t total = 0;
    for (; loop >= 0; loop = program_.code[loop].loop) {
        const Instruction& i = program_.code[loop];
        int64_t done = int64_t{config.count[i.depth - 1]} + 1;
        total += std::max<int64_t>(0, i.low - done) * i.body + i.length;
        total = std::min(total, kFar);
    }
    return total;
}

// The bytes of a shortest text from a configuration to the end.
int64_t Automaton::distance(const Config& config) const {
    const Instruction& i = program_.code[config.pc];
    int64_t tail = i.length - program_.nodes[i.x].rest;
    return std::min(program_.nodes[config.node].more + tail + after(i.loop, config), kFar);
}

bool Automaton::shortest(int32_t state, size_t limit, std::vector<uint32_t>& tokens) {
    work_ = 0;
    std::string text;
    while (!states_[state].accepting) {
        int64_t best = kFar;
        int byte = -1;
        for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
            const Config& config = configs_[members_[m]];
            int64_t far = distance(config);
            if (far > best) continue;
            if (far < best) byte = -1;
            best = far;
            const Program::Node& node = program_.nodes[config.node];
            for (uint32_t e = node.first; e < node.last; e++) {
                const Program::Edge& edge = program_.edges[e];
                if (1 + program_.nodes[edge.to].rest != node.more) continue;
                for (int b = edge.low; b <= edge.high; b++)
                    if (byte < 0 || liking(b) > liking(byte)) byte = b;
            }
        }
        if (byte < 0 || best + static_cast<int64_t>(text.size()) > static_cast<int64_t>(limit)) return false;
        state = next(state, static_cast<uint8_t>(byte));
        if (state < 0) return false;
        text.push_back(static_cast<char>(byte));
    }
    return trie_->spell(text, tokens);
}

}  // namespace stolon
