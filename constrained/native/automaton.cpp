#include "automaton.h"

#include <algorithm>

namespace stolon {

namespace {

uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

}  // namespace

size_t Automaton::Hash::operator()(const Config& c) const {
    uint64_t h = mix(c.pc, (uint64_t{c.node} << 32) | c.entered);
    for (uint32_t n : c.count) h = mix(h, n);
    return h;
}

size_t Automaton::Hash::operator()(const std::vector<uint32_t>& v) const {
    uint64_t h = v.size();
    for (uint32_t n : v) h = mix(h, n);
    return h;
}

Automaton::Automaton(Program program, const Trie* trie, Limits bounds)
    : limits(bounds), program_(std::move(program)), trie_(trie) {
    program_.prepare();
    // Bytes that no edge tells apart share a column.
    bool begins[257] = {true};
    for (const Program::Edge& edge : program_.edges) begins[edge.low] = begins[edge.high + 1] = true;
    for (int byte = 0; byte < 256; byte++) {
        classes_ += begins[byte];
        class_of_[byte] = static_cast<uint8_t>(classes_ - 1);
    }
    path_.resize(trie_->longest + 2);
    runs_.push_back({kDead, {0, 0}, false, 0});
}

uint32_t Automaton::intern(const Config& config) {
    auto [found, added] = config_ids_.try_emplace(config, static_cast<uint32_t>(configs_.size()));
    if (added) {
        configs_.push_back(config);
        seen_.push_back(0);
        memory_ += sizeof(Config) * 2 + 48;
    }
    return found->second;
}

// Everything that can be reached from `pc` without text is added to the set being built.
void Automaton::close(uint32_t pc, const Config& from) {
    todo_.clear();
    Config first = from;
    first.pc = pc;
    first.node = 0;
    first.entered = 0;
    todo_.push_back(first);
    while (!todo_.empty()) {
        Config at = todo_.back();
        todo_.pop_back();
        const Instruction& i = program_.code[at.pc];
        auto go = [&](int64_t to, const Config& with) {
            todo_.push_back(with);
            todo_.back().pc = static_cast<uint32_t>(to);
        };
        if (++work_ > limits.work) return;
        if (i.op == Instruction::kMatch) {
            Config config = at;
            config.node = static_cast<uint32_t>(i.x);
            config.entered = 0;
            uint32_t id = intern(config);
            if (seen_[id] != epoch_) {
                seen_[id] = epoch_;
                set_.push_back(id);
            }
            continue;
        }
        // The node marks a place on the way, apart from any configuration of a state.
        at.node = 0xFFFFFFFF;
        uint32_t id = intern(at);
        if (seen_[id] == epoch_) continue;
        seen_[id] = epoch_;
        if (i.op == Instruction::kAccept) {
            set_accepting_ = true;
        } else if (i.op == Instruction::kSplit) {
            for (int64_t t = i.y; t-- > i.x;) go(program_.targets[t], at);
        } else if (i.op == Instruction::kEnter) {
            if (i.low == 0) go(i.y, at);
            if (i.body) at.entered |= 1u << i.depth;
            at.count[i.depth] = 0;
            go(i.x, at);
        } else {
            int64_t index = i.depth - 1;
            // An iteration without text leads nowhere that leaving at once did not.
            if (at.entered >> index & 1) continue;
            uint32_t count = at.count[index];
            bool more = true, out = true;
            if (count == kBelow) {
                out = false;
            } else if (count != kFree) {
                count++;
                more = i.high < 0 || count < i.high;
                out = count >= i.low;
                if (i.high < 0) count = std::min<uint32_t>(count, i.low);
            }
            if (more) {
                Config again = at;
                again.count[index] = count;
                if (!i.body) again.entered |= 1u << index;
                go(i.x, again);
            }
            if (out) {
                at.count[index] = 0;
                go(i.y, at);
            }
        }
    }
}

int32_t Automaton::intern_set(bool accepting) {
    if (over() || static_cast<int64_t>(set_.size()) > limits.set_size) return kOver;
    if (set_.empty() && !accepting) return kDead;
    std::sort(set_.begin(), set_.end());
    size_t hash = Hash()(set_) * 2 + accepting;
    std::vector<int32_t>& alike = state_ids_[hash];
    for (int32_t id : alike) {
        const State& s = states_[id];
        if (s.accepting == accepting && s.last - s.first == set_.size() &&
            std::equal(set_.begin(), set_.end(), members_.begin() + s.first))
            return id;
    }
    auto id = static_cast<int32_t>(states_.size());
    State state{static_cast<uint32_t>(members_.size()), 0, accepting, false, kUnknown, -1, 0};
    members_.insert(members_.end(), set_.begin(), set_.end());
    state.last = static_cast<uint32_t>(members_.size());
    states_.push_back(state);
    states_.back().closed = set_.empty();
    alike.push_back(id);
    memory_ += sizeof(State) + set_.size() * sizeof(uint32_t) + 80;
    return id;
}

int32_t Automaton::start() {
    work_ = 0;
    epoch_++;
    set_.clear();
    set_accepting_ = false;
    close(static_cast<uint32_t>(program_.start), Config{});
    return intern_set(set_accepting_);
}

int32_t Automaton::step(int32_t state, uint8_t byte) {
    if (over()) return kOver;
    epoch_++;
    set_.clear();
    set_accepting_ = false;
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        Config config = configs_[members_[m]];
        const Program::Node& node = program_.nodes[config.node];
        work_++;
        const Program::Edge* begin = program_.edges.data() + node.first;
        const Program::Edge* end = program_.edges.data() + node.last;
        const Program::Edge* edge =
            std::lower_bound(begin, end, byte, [](const Program::Edge& e, uint8_t b) { return e.high < b; });
        if (edge == end || edge->low > byte) continue;
        const Program::Node& to = program_.nodes[edge->to];
        if (to.first != to.last) {
            config.node = edge->to;
            uint32_t id = intern(config);
            if (seen_[id] != epoch_) {
                seen_[id] = epoch_;
                set_.push_back(id);
            }
        }
        if (to.end) close(static_cast<uint32_t>(program_.code[config.pc].y), config);
        if (work_ > limits.work || static_cast<int64_t>(set_.size()) > limits.set_size) return kOver;
    }
    int32_t to = intern_set(set_accepting_);
    if (to == kOver) return kOver;
    int64_t row = states_[state].row;
    if (row < 0) {
        row = states_[state].row = static_cast<int64_t>(rows_.size());
        rows_.resize(rows_.size() + classes_, kUnknown);
        memory_ += classes_ * sizeof(int32_t);
    }
    rows_[row + class_of_[byte]] = to;
    return to;
}

int32_t Automaton::advance(int32_t state, std::string_view text) {
    work_ = 0;
    for (char c : text) {
        state = next(state, static_cast<uint8_t>(c));
        if (state < 0) return state;
    }
    return state;
}

int32_t Automaton::coarse(int32_t state) {
    if (states_[state].coarse != kUnknown) return states_[state].coarse;
    work_ = 0;
    epoch_++;
    set_.clear();
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        Config config = configs_[members_[m]];
        int64_t loop = program_.code[config.pc].loop;
        for (; loop >= 0; loop = program_.code[loop].loop) {
            const Instruction& i = program_.code[loop];
            uint32_t& count = config.count[i.depth - 1];
            // How many iterations a token may finish, the one under way included.
            int64_t reach = trie_->longest / std::max<int64_t>(i.body, 1) + 2;
            if (count + reach < i.low) {
                count = kBelow;
            } else if (i.high >= 0 && count >= i.low && count + reach < i.high) {
                count = kFree;
            }
        }
        uint32_t id = intern(config);
        if (seen_[id] != epoch_) {
            seen_[id] = epoch_;
            set_.push_back(id);
        }
    }
    int32_t to = intern_set(states_[state].accepting);
    if (to >= 0) {
        states_[state].coarse = to;
        states_[to].coarse = to;
    }
    return to;
}

}  // namespace stolon
