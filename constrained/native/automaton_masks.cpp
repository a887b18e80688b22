// The mask of a state: which tokens may come, by a walk over the trie.
//
// In free text nearly every token is allowed, and walking all of them would be the same in each grammar. So it is
// noted of a state which characters lead to one same state (itself, or the next place in a repetition); tokens of
// these need no walk.
#include <algorithm>
#include <bit>

#include "automaton.h"

namespace stolon {

const Automaton::Run& Automaton::run_of(int32_t state) {
    if (int32_t known = states_[state].run; known > 0) return runs_[known];
    Run run{kDead, {0, 0}, false, 0};
    int32_t to[128];
    int64_t votes = 0;
    for (int byte = 0; byte < 128; byte++) {
        bool again = byte && class_of_[byte] == class_of_[byte - 1];
        to[byte] = again ? to[byte - 1] : next(state, static_cast<uint8_t>(byte));
        if (to[byte] == kOver) return runs_[0];
        if (to[byte] < 0) continue;
        if (votes == 0) run.to = to[byte];  // the majority, if there is one
        votes += to[byte] == run.to ? 1 : -1;
    }
    if (run.to >= 0) {
        for (int byte = 0; byte < 128; byte++)
            if (to[byte] == run.to) run.ascii[byte >> 6] |= uint64_t{1} << (byte & 63);
        run.wide = all_wide_lead(state, run.to);
    }
    states_[state].run = static_cast<int32_t>(runs_.size());
    runs_.push_back(run);
    memory_ += sizeof(Run);
    return runs_.back();
}

uint32_t Automaton::length_of(int32_t state) {
    constexpr uint32_t kEver = 0xFFFFFFFF;
    // Along the states that the characters of this one lead through, up to one that is known.
    chain_.clear();
    uint32_t length = 0;
    while (true) {
        Run run = run_of(state);
        if (run.to < 0) break;
        chain_.push_back(state);
        if (run.length || run.to == state || chain_.size() > trie_->longest) {
            length = run.length ? run.length : run.to == state ? kEver : 1;
            break;
        }
        const Run& after = run_of(run.to);
        bool more = !(run.ascii[0] & ~after.ascii[0]) && !(run.ascii[1] & ~after.ascii[1]) && (after.wide || !run.wide);
        if (!more) {
            length = 1;
            break;
        }
        state = run.to;
    }
    for (size_t i = chain_.size(); i-- > 0;) {
        uint32_t& known = runs_[states_[chain_[i]].run].length;
        if (i + 1 < chain_.size() && length != kEver) length++;
        if (known == 0) known = length;
    }
    return length;
}

bool Automaton::all_wide_lead(int32_t state, int32_t to) {
    struct Place {
        int32_t state;
        int within;
        bool operator==(const Place&) const = default;
    };
    constexpr size_t kPlaces = 64;
    std::vector<Place> places{{state, 0}};
    for (size_t i = 0; i < places.size(); i++) {
        Place at = places[i];
        int32_t after = kDead;
        for (int byte = 128; byte < 256; byte++) {
            if (byte == 128 || class_of_[byte] != class_of_[byte - 1]) after = kUnknown;
            int within = utf8_next(at.within, static_cast<uint8_t>(byte));
            if (within < 0) continue;
            if (after == kUnknown) after = next(at.state, static_cast<uint8_t>(byte));
            if (after < 0 || (within == 0 && after != to)) return false;
            if (within == 0) continue;
            Place place{after, within};
            if (std::find(places.begin(), places.end(), place) != places.end()) continue;
            if (places.size() == kPlaces) return false;
            places.push_back(place);
        }
    }
    return true;
}

bool Automaton::takes_below(int32_t state, uint32_t node) {
    const Trie::Below& below = trie_->below[node];
    if (!below.text) return false;
    const Run* run = &run_of(state);
    if ((below.ascii[0] & ~run->ascii[0]) | (below.ascii[1] & ~run->ascii[1])) return false;
    if (below.wide && !run->wide) return false;
    return below.chars <= (run->length ? run->length : length_of(state));
}

bool Automaton::takes_most(int32_t state) {
    constexpr int kMany = 24;  // fewer characters are seldom most of a vocabulary
    const Run run = run_of(state);
    if (std::popcount(run.ascii[0]) + std::popcount(run.ascii[1]) < kMany) return false;
    size_t taken = 0;
    for (uint32_t at = 0; at < trie_->nodes.size(); at = trie_->nodes[at].skip) {
        uint8_t byte = trie_->nodes[at].byte;
        bool takes = byte < 128 ? run.ascii[byte >> 6] >> (byte & 63) & 1 : run.wide;
        if (takes) taken += trie_->tokens_end(at) - trie_->nodes[at].first;
    }
    return taken > trie_->tokens.size() / 2;
}

bool Automaton::fill(int32_t state, uint32_t* row) {
    work_ = 0;
    return takes_most(state) ? walk<true>(state, row) : walk<false>(state, row);
}

template <bool Most>
bool Automaton::walk(int32_t state, uint32_t* row) {
    constexpr uint32_t kFew = 4;  // nodes that are sooner walked than asked about
    const std::vector<Trie::Node>& nodes = trie_->nodes;
    auto set = [&](uint32_t first, uint32_t last, bool allowed) {
        if (allowed == Most) return;
        for (uint32_t t = first; t < last; t++) {
            uint32_t token = trie_->tokens[t];
            row[token >> 5] ^= 1u << (token & 31);
        }
    };
    if (Most) std::copy(trie_->row.begin(), trie_->row.end(), row);
    path_[0] = state;
    for (uint32_t at = 0; at < nodes.size();) {
        const Trie::Node& node = nodes[at];
        int32_t to = next(path_[node.depth - 1], node.byte);
        if (to < 0) {
            if (to == kOver) return false;
            set(node.first, trie_->tokens_end(at), false);
            at = node.skip;
            continue;
        }
        path_[node.depth] = to;
        set(node.first, node.last, true);
        bool none = states_[to].closed;
        if (none || (node.skip - at > kFew && takes_below(to, at))) {
            set(node.last, trie_->tokens_end(at), !none);
            at = node.skip;
        } else {
            at++;
        }
    }
    return true;
}

}  // namespace stolon
