// A regex as a deterministic automaton over bytes, built only where it is walked.
//
// A state is a set of configurations. A configuration is a place in the program (a graph node within a match
// instruction) with the counts of the loops around it. Configurations and states are interned, transitions are
// remembered, and every configuration can reach the end, so every state can.
//
// For masks, counts are made coarse first: what is further from a bound than the longest token can go makes no
// difference to any token. Most positions in a long repetition thus share one mask and the states under it.
//
// Three files build it: automaton.cpp its states and transitions, automaton_masks.cpp the masks of states, and
// automaton_texts.cpp the texts that it tells of itself.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program.h"
#include "trie.h"

namespace stolon {

struct Limits {
    int64_t memory = 64 << 20;       // bytes of states and transitions
    int64_t set_size = 4096;         // configurations in a state
    int64_t work = 4 << 20;          // closure steps in one call
};

class Automaton {
  public:
    static constexpr int32_t kDead = -1;  // no text goes on so
    static constexpr int32_t kOver = -2;  // a limit was met; the state is not known

    Automaton(Program program, const Trie* trie, Limits bounds);

    // States are numbers from 0; all methods take live ones. One thread at a time, under `mutex`.
    int32_t start();
    int32_t advance(int32_t state, std::string_view text);
    bool accepting(int32_t state) const { return states_[state].accepting; }
    // Whether no byte may follow.
    bool closed(int32_t state) const { return states_[state].closed; }

    // A state with the same mask, the same one for many; kOver at a limit.
    int32_t coarse(int32_t state);
    // Set the bits of the allowed tokens in a row of zeros. False at a limit.
    bool fill(int32_t state, uint32_t* row);

    // The bytes that must come next, up to `limit`, and the state after them (kOver at a limit).
    std::pair<std::string, int32_t> forced(int32_t state, size_t limit);

    // The last place in `tail` before which tokens are the same whatever follows: no token crosses it, neither one of
    // the tail nor one that goes on beyond it as `state` allows. `more` gets what tokens of the latter kind have beyond
    // the tail, for up to six first bytes at each position, up to `count` in all.
    size_t mergeable(int32_t state, std::string_view tail, size_t count, std::vector<std::string>& more);

    // A shortest text from here to an end, as the fewest tokens that spell it. False without one up to `limit`.
    bool shortest(int32_t state, size_t limit, std::vector<uint32_t>& tokens);

    int64_t memory() const { return memory_; }
    int64_t size() const { return static_cast<int64_t>(states_.size()); }
    int32_t vocabulary() const { return static_cast<int32_t>(trie_->count); }
    const Trie& trie() const { return *trie_; }

    Limits limits;
    std::mutex mutex;

  private:
    static constexpr int32_t kUnknown = -3;
    static constexpr uint32_t kBelow = 0xFFFFFFFE;  // far below the lower bound
    static constexpr uint32_t kFree = 0xFFFFFFFF;   // between the bounds, far from the upper one

    struct Config {
        uint32_t pc, node;
        uint32_t entered;  // loops (bits) begun since the last byte; 0 in a state
        uint32_t count[kMaxLoops];
        bool operator==(const Config&) const = default;
    };
    struct Hash {
        size_t operator()(const Config& c) const;
        size_t operator()(const std::vector<uint32_t>& v) const;
    };
    struct State {
        uint32_t first, last;  // its configurations, in `members_`
        bool accepting, closed;
        int32_t coarse;
        int64_t row;  // its transitions, in `rows_`; -1 before the first
        int32_t run;  // in `runs_`; 0 before it is asked for
    };
    // The characters that lead from a state to one and the same.
    struct Run {
        int32_t to;         // kDead without any
        uint64_t ascii[2];  // those of one byte
        bool wide;          // whether all others do too
        uint32_t length;    // how many of these characters may surely come after each other; 0 before it is asked for
    };

    // States and transitions.
    int32_t next(int32_t state, uint8_t byte) {
        int64_t row = states_[state].row;
        if (row >= 0) {
            int32_t to = rows_[row + class_of_[byte]];
            if (to != kUnknown) return to;
        }
        return step(state, byte);
    }
    int32_t step(int32_t state, uint8_t byte);
    void close(uint32_t pc, const Config& from);
    uint32_t intern(const Config& config);
    int32_t intern_set(bool accepting);
    bool over() const { return work_ > limits.work || memory_ > limits.memory; }

    // Masks.
    // Its length is not known yet; `length_of` sets it.
    const Run& run_of(int32_t state);
    uint32_t length_of(int32_t state);
    bool all_wide_lead(int32_t state, int32_t to);
    // Whether every text below a node of the trie goes on from a state, as far as runs tell.
    bool takes_below(int32_t state, uint32_t node);
    // Whether most tokens begin with a byte of the state's run.
    bool takes_most(int32_t state);
    // `Most`: begin with all tokens and take away what is not allowed. The result is the same.
    template <bool Most>
    bool walk(int32_t state, uint32_t* row);

    // Texts.
    int live_byte(int32_t state) const;  // the only byte that may follow; -1 without, 256 with several
    int64_t distance(const Config& config) const;
    int64_t after(int64_t loop, const Config& config) const;

    Program program_;
    const Trie* trie_;
    uint8_t class_of_[256];
    int classes_ = 0;

    std::vector<Config> configs_;
    std::unordered_map<Config, uint32_t, Hash> config_ids_;
    std::vector<State> states_;
    std::vector<uint32_t> members_;
    std::unordered_map<size_t, std::vector<int32_t>> state_ids_;  // by hash
    std::vector<int32_t> rows_;
    std::vector<Run> runs_;  // the first one is of no characters
    std::vector<int32_t> chain_;
    int64_t memory_ = 0, work_ = 0;

    // Of the set being built.
    std::vector<uint32_t> set_;
    std::vector<uint32_t> seen_;  // by configuration: the epoch it was seen in
    uint32_t epoch_ = 0;
    bool set_accepting_ = false;
    std::vector<Config> todo_;
    std::vector<int32_t> path_;  // of a walk, by depth
};

}  // namespace stolon
