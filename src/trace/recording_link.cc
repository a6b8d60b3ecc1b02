// What belongs together in a recording: see link_job().
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "src/trace/recording.h"

namespace verbena::trace {

namespace {

Status contradiction(const RecordedJob& job, std::string_view what) {
  return {StatusCode::kProtocolViolation,
          fmt::format("{} contradicts itself: {}; record the program again", job.name, what)};
}

// --- communicators: of equal members, the first one of one rank is the first one of the others ---

Status link_communicators(RecordedJob& job) {
  std::map<std::vector<uint32_t>, std::vector<uint32_t>> numbers;
  for (RankRecording& rank : job.ranks) {
    if (rank.communicators.empty() || rank.communicators.front().size() != job.ranks.size()) {
      return contradiction(
          job, fmt::format("rank {} has no communicator of all {} ranks", rank.rank, job.size()));
    }
    std::map<std::vector<uint32_t>, size_t> met;
    std::vector<uint32_t> number_of;
    for (std::vector<uint32_t>& members : rank.communicators) {
      std::vector<uint32_t>& known = numbers[members];
      const size_t nth = met[members]++;
      if (nth == known.size()) {
        known.push_back(static_cast<uint32_t>(job.communicators.size()));
        job.communicators.push_back(members);
      }
      number_of.push_back(known[nth]);
    }
    for (Event& event : rank.events) {
      if (event.operation != Operation::kWait) event.communicator = number_of[event.communicator];
    }
    rank.communicators.clear();
    // Number 1 is of one rank, and another one of the next.
    if (job.communicators.size() > kMostCommunicators + job.ranks.size()) {
      return {StatusCode::kLimitExceeded,
              fmt::format("{} has more than {} communicators; record a shorter run of the program",
                          job.name, kMostCommunicators)};
    }
  }
  return Status::ok_status();
}

// --- messages: sends and receives of two ranks, a communicator and a tag match in their order ---

struct MessageEnd {
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t channel = 0;
  Event* event = nullptr;
  auto place() const { return std::tuple(from, to, channel); }
};

bool comes_before(const MessageEnd& a, const MessageEnd& b) { return a.place() < b.place(); }

Status link_messages(RecordedJob& job) {
  std::unordered_map<uint64_t, uint32_t> channels;
  std::vector<MessageEnd> sends;
  std::vector<MessageEnd> receives;
  for (RankRecording& rank : job.ranks) {
    for (Event& event : rank.events) {
      const bool sent =
          event.operation == Operation::kSend || event.operation == Operation::kStartSend;
      const bool received =
          event.operation == Operation::kReceive || event.operation == Operation::kStartReceive;
      if (event.has(kUnmatched)) ++job.unmatched_receives;
      if (event.has(kUnmatched) || !(sent || received)) continue;
      const uint64_t key = uint64_t{event.communicator} << 32 | static_cast<uint32_t>(event.tag);
      event.channel = channels.emplace(key, static_cast<uint32_t>(channels.size())).first->second;
      if (sent) {
        sends.push_back({rank.rank, event.peer, event.channel, &event});
      } else {
        receives.push_back({event.peer, rank.rank, event.channel, &event});
      }
    }
  }
  job.channels = static_cast<uint32_t>(channels.size());
  std::stable_sort(sends.begin(), sends.end(), comes_before);
  std::stable_sort(receives.begin(), receives.end(), comes_before);
  auto receive = receives.begin();
  const auto leave_receive = [&] {
    receive->event->flags |= kUnmatched;
    ++job.unmatched_receives;
    ++receive;
  };
  for (const MessageEnd& send : sends) {
    while (receive != receives.end() && comes_before(*receive, send)) leave_receive();
    if (receive == receives.end() || comes_before(send, *receive)) {
      send.event->flags |= kUnmatched;
      ++job.unmatched_sends;
      continue;
    }
    if (receive->event->bytes != send.event->bytes) {
      return contradiction(
          job,
          fmt::format("rank {} sends {} bytes to rank {} with tag {}, which receives {}", send.from,
                      send.event->bytes, send.to, send.event->tag, receive->event->bytes));
    }
    ++receive;
  }
  while (receive != receives.end()) leave_receive();
  return Status::ok_status();
}

// --- collective operations: each member of a communicator calls them in the same order ---

using Calls = std::vector<std::pair<const RankRecording*, Event*>>;  // by member

class CollectiveCheck {
 public:
  CollectiveCheck(const RecordedJob& job, const std::vector<uint32_t>& members, const Calls& calls)
      : job_(job), members_(members), calls_(calls) {}

  Status check() const {
    const Event& first = *calls_.front().second;
    for (size_t member = 1; member < calls_.size(); ++member) {
      const Event& event = *calls_[member].second;
      if (event.operation != first.operation || event.peer != first.peer) {
        return other(member,
                     fmt::format("calls {}, root {}", operation_name(event.operation), event.peer));
      }
    }
    for (size_t member = 0; member < calls_.size(); ++member) {
      VERBENA_RETURN_IF_ERROR(check_member(member));
    }
    return Status::ok_status();
  }

 private:
  Status other(size_t member, std::string_view what) const {
    return contradiction(job_,
                         fmt::format("rank {} calls {}, root {}, and rank {} {}", members_.front(),
                                     operation_name(calls_.front().second->operation),
                                     calls_.front().second->peer, members_[member], what));
  }
  Status check_member(size_t member) const {
    const Event& first = *calls_.front().second;
    const auto& [rank, event] = calls_[member];
    switch (first.operation) {
      case Operation::kGather:
      case Operation::kScatter: {
        const auto& [root_rank, root] = calls_[first.peer];
        const uint64_t expected = root->has(kVaries) ? root_rank->list(*root)[member] : root->bytes;
        if (member != first.peer && (event->has(kVaries) || event->bytes != expected)) {
          return other(member, fmt::format("has {} bytes of {}", event->bytes, expected));
        }
        return Status::ok_status();
      }
      case Operation::kAlltoall:
        if (event->has(kVaries)) return check_exchange(member);
        break;
      case Operation::kAllgather:
      case Operation::kReduceScatter:
        if (event->has(kVaries)) {
          const auto mine = rank->list(*event);
          const auto theirs = calls_.front().first->list(first);
          if (!std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) {
            return other(member, "with other bytes");
          }
          return Status::ok_status();
        }
        break;
      default:
        break;
    }
    if (event->has(kVaries) != first.has(kVaries) || event->bytes != first.bytes) {
      return other(member, fmt::format("with {} bytes, not {}", event->bytes, first.bytes));
    }
    return Status::ok_status();
  }
  // Each gets from this member what it sends.
  Status check_exchange(size_t member) const {
    const auto& [rank, event] = calls_[member];
    const auto sent = rank->list(*event);
    for (size_t to = 0; to < calls_.size(); ++to) {
      const auto& [to_rank, to_event] = calls_[to];
      if (!to_event->has(kVaries)) return other(member, "with a list");
      const uint64_t received = to_rank->list(*to_event)[calls_.size() + member];
      if (received != sent[to]) {
        return other(member, fmt::format("sends {} bytes to rank {}, which receives {}", sent[to],
                                         members_[to], received));
      }
    }
    return Status::ok_status();
  }

  const RecordedJob& job_;
  const std::vector<uint32_t>& members_;
  const Calls& calls_;
};

Status link_collectives(RecordedJob& job) {
  // By communicator and rank: its calls.
  std::vector<std::unordered_map<uint32_t, std::vector<Event*>>> called(job.communicators.size());
  for (RankRecording& rank : job.ranks) {
    for (Event& event : rank.events) {
      if (is_collective(event.operation)) called[event.communicator][rank.rank].push_back(&event);
    }
  }
  for (size_t number = 0; number < called.size(); ++number) {
    if (called[number].empty()) continue;
    const std::vector<uint32_t>& members = job.communicators[number];
    const size_t times = called[number][members.front()].size();
    for (const uint32_t member : members) {
      const size_t times_of_member = called[number][member].size();
      if (times_of_member == times) continue;
      return contradiction(
          job, fmt::format("rank {} calls {} collective operations of a communicator, rank {} {}",
                           members.front(), times, member, times_of_member));
    }
    Calls calls(members.size());
    for (size_t nth = 0; nth < times; ++nth) {
      for (size_t member = 0; member < members.size(); ++member) {
        calls[member] = {&job.ranks[members[member]], called[number][members[member]][nth]};
      }
      VERBENA_RETURN_IF_ERROR(CollectiveCheck(job, members, calls).check());
      const Event& first = *calls.front().second;
      const bool rooted =
          first.operation == Operation::kGather || first.operation == Operation::kScatter;
      if (!rooted || !calls[first.peer].second->has(kVaries)) continue;
      for (const auto& [rank, event] : calls) event->flags |= kVariesAtRoot;
    }
  }
  return Status::ok_status();
}

bool has_several_threads(const RecordedJob& job) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [](const RankRecording& rank) { return rank.threads > 1; });
}

uint64_t mix(uint64_t sum, uint64_t value) {
  sum = (sum ^ value) * 0x9e3779b97f4a7c15u;
  return sum ^ sum >> 29;
}

uint64_t digest_of(const RecordedJob& job) {
  uint64_t sum = job.ranks.size();
  for (const RankRecording& rank : job.ranks) {
    for (const Event& event : rank.events) {
      for (const uint64_t value :
           {event.compute_ns, event.bytes, event.address, uint64_t{event.peer},
            uint64_t{event.channel}, uint64_t{event.communicator}, uint64_t{event.request},
            uint64_t{static_cast<uint8_t>(event.operation)}, uint64_t{event.flags}}) {
        sum = mix(sum, value);
      }
    }
    for (const uint64_t number : rank.numbers) sum = mix(sum, number);
  }
  return sum;
}

}  // namespace

Status link_job(RecordedJob& job) {
  VERBENA_RETURN_IF_ERROR(link_communicators(job));
  // Calls of several threads are in the order in which they ended, which says neither what came
  // first nor what waited for what. So nothing else is linked, and nothing is replayed.
  if (!has_several_threads(job)) {
    VERBENA_RETURN_IF_ERROR(link_messages(job));
    VERBENA_RETURN_IF_ERROR(link_collectives(job));
    VERBENA_RETURN_IF_ERROR(check_progress(job));
  }
  job.digest = digest_of(job);
  return Status::ok_status();
}

}  // namespace verbena::trace
