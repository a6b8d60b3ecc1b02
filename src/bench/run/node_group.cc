#include "src/bench/run/node_group.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/bench/run/interrupt.h"

namespace verbena::bench {

namespace {

constexpr int64_t kTearDownTimeoutNs = 20'000'000'000;  // of all nodes together
constexpr int64_t kTearDownLookNs = 100'000'000;
// A node that is stopped may be continued with the one who waits for it, a little later; who waits
// for one that is gone may be about to end.
constexpr uint64_t kStoppedPatienceNs = 2'000'000'000;
// How long after a failure a process may take to be seen dead.
constexpr uint64_t kDeathPatienceNs = 300'000'000;

}  // namespace

std::string NodeGroup::name_of(uint32_t number) const {
  const WiredNode& node = wiring_.nodes[number];
  const bool requests = node.requesting > 0;
  const char* role = !requests ? "responder" : node.responding == 0 ? "requester" : "node";
  const auto same_role = [&](const WiredNode& other) { return (other.requesting > 0) == requests; };
  const auto all = std::count_if(wiring_.nodes.begin(), wiring_.nodes.end(), same_role);
  const std::string where = nodes_[number]->name();
  if (all == 1) return fmt::format("the {} ({})", role, where);
  const auto before =
      std::count_if(wiring_.nodes.begin(), wiring_.nodes.begin() + number, same_role);
  return fmt::format("{} {} of {} ({})", role, before + 1, all, where);
}

void NodeGroup::note_failure(uint32_t number, const Status& status) {
  const Status named(status.code(), fmt::format("{}: {}", name_of(number), status.message()));
  if (first_failure_.ok()) first_failure_ = named;
  // A limit that one has met is the cause of whatever others saw of it.
  const bool limit = status.code() == StatusCode::kLimitExceeded &&
                     first_cause_.code() != StatusCode::kLimitExceeded;
  if (limit || (first_cause_.ok() && status.code() != StatusCode::kUnavailable)) {
    first_cause_ = named;
  }
}

Status NodeGroup::tell(uint32_t number, const Message& message) {
  const Status sent = send_message(nodes_[number]->control(), message);
  if (!sent.ok()) note_failure(number, sent);
  return sent;
}

std::vector<pid_t> NodeGroup::processes() const {
  std::vector<pid_t> list;
  for (const NodeLink* node : nodes_) {
    if (node->has_process()) list.push_back(node->process());
  }
  return list;
}

Status PointNodes::tell_all(const Message& message) {
  for (uint32_t number = 0; number < size(); ++number) {
    VERBENA_RETURN_IF_ERROR(tell(number, message));
  }
  return Status::ok_status();
}

Status NodeGroup::collect(MessageKind kind, int64_t timeout_ns, uint64_t stall_ns,
                          const Take& take) {
  const uint64_t start_ns = now_ns();
  std::vector<bool> answered(size());
  std::vector<uint64_t> heard(size());
  std::vector<SilenceWatch> watches(size(),
                                    SilenceWatch(std::max(stall_ns, 2 * kAliveNs), start_ns));
  for (uint32_t missing = size(); missing > 0;) {
    std::vector<pollfd> sources;
    std::vector<uint32_t> numbers;
    for (uint32_t number = 0; number < size(); ++number) {
      // Those that answered are watched too: they may fail, or die.
      sources.push_back({nodes_[number]->control().descriptor(), POLLIN, 0});
      numbers.push_back(number);
    }
    if (poll(sources.data(), sources.size(), kInterruptLookMs) < 0 && errno != EINTR) {
      return Status(StatusCode::kInternal, "cannot wait for the nodes");
    }
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].revents == 0) continue;
      const uint32_t number = numbers[i];
      Result<Message> message = receive_message(nodes_[number]->control(), kTearDownTimeoutNs);
      Status status = message.status();
      ++heard[number];
      if (message.ok() && message->kind == MessageKind::kAlive) continue;
      if (message.ok() && message->kind == MessageKind::kFailed) {
        status = Status(message->code, message->cause);
      } else if (message.ok() && (message->kind != kind || answered[number])) {
        status =
            Status(StatusCode::kProtocolViolation,
                   fmt::format("it sent message {} instead of {}; run the same release everywhere",
                               static_cast<int>(message->kind), static_cast<int>(kind)));
      }
      if (!status.ok()) {
        note_failure(number, status);
        return status;
      }
      answered[number] = true;
      --missing;
      take(number, *message);
    }
    for (uint32_t number = 0; number < size(); ++number) {
      if (!watches[number].too_long(now_ns(), heard[number]) || answered[number]) continue;
      const Status status(
          StatusCode::kTimeout,
          fmt::format("no sign of life for {:.1f} s; is its process stopped, or its "
                      "machine overloaded or gone?",
                      static_cast<double>(watches[number].silent_ns()) / 1e9));
      silent_ = true;
      note_failure(number, status);
      return status;
    }
    if (missing > 0 && now_ns() - start_ns > static_cast<uint64_t>(timeout_ns)) {
      const auto silent = static_cast<uint32_t>(std::find(answered.begin(), answered.end(), false) -
                                                answered.begin());
      const Status status(StatusCode::kTimeout,
                          fmt::format("it did not answer within {} s; is its process stopped, or "
                                      "its machine overloaded?",
                                      timeout_ns / 1'000'000'000));
      note_failure(silent, status);
      return status;
    }
  }
  return Status::ok_status();
}

std::string NodeGroup::stopped_text() const {
  std::string text;
  for (uint32_t number = 0; number < size(); ++number) {
    if (!nodes_[number]->is_stopped()) continue;
    text += fmt::format("; {} is stopped, as by SIGSTOP or a debugger", name_of(number));
  }
  return text;
}

void NodeGroup::tear_down() {
  const uint64_t start_ns = now_ns();
  // Where one has met a limit, is stopped or is gone, others may wait for it until their own
  // time-outs: as long as kSetupTimeoutNs while they connect.
  bool others_wait = silent_ || first_cause_.code() == StatusCode::kLimitExceeded;
  std::vector<bool> told(size());
  for (uint32_t number = 0; number < size(); ++number) {
    told[number] = send_message(nodes_[number]->control(), {.kind = MessageKind::kTearDown}).ok();
    nodes_remain_ = nodes_remain_ && told[number];
    others_wait = others_wait || !told[number] || nodes_[number]->control().peer_closed();
  }
  for (uint32_t number = 0; number < size(); ++number) {
    SilenceWatch stopped(kStoppedPatienceNs, now_ns());
    while (told[number]) {
      Result<Message> message = receive_message(nodes_[number]->control(), kTearDownLookNs);
      if (message.ok() && message->kind == MessageKind::kDone) break;
      if (message.status().code() == StatusCode::kTimeout && !interrupted()) {
        const uint64_t now = now_ns();
        const uint64_t patience_ns =
            others_wait ? kStoppedPatienceNs : uint64_t{kTearDownTimeoutNs};
        const bool waits = now - start_ns <= patience_ns;
        // Whether it is stopped is the progress that it makes: any other state begins anew.
        if (waits && !stopped.too_long(now, nodes_[number]->is_stopped() ? 0 : now)) continue;
        message = Status(StatusCode::kTimeout, fmt::format("it did not end the point within {} s",
                                                           (now - start_ns) / 1'000'000'000));
      }
      if (!message.ok()) {
        note_failure(number, message.status());
        nodes_remain_ = false;
        others_wait = true;
        break;
      }
      // Else it was on its way when another node failed.
      if (message->kind == MessageKind::kFailed) {
        note_failure(number, Status(message->code, message->cause));
      }
    }
  }
}

Status NodeGroup::failure() {
  const Status first = first_failure();
  if (first.ok()) return first;
  return Status(first.code(), first.message() + stopped_text());
}

Status NodeGroup::first_failure() {
  if (first_failure_.ok()) return first_failure_;
  uint64_t patience_ns = kDeathPatienceNs;
  for (uint32_t number = 0; number < size(); ++number) {
    if (!nodes_[number]->has_process()) continue;
    if (!nodes_[number]->control().peer_closed()) continue;
    const std::string reason = nodes_[number]->reason_of_death(patience_ns);
    if (!reason.empty()) {
      return Status(StatusCode::kUnavailable, fmt::format("{} {}", name_of(number), reason));
    }
    patience_ns = 0;
  }
  return first_cause_.ok() ? first_failure_ : first_cause_;
}

}  // namespace verbena::bench
