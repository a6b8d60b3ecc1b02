#include "src/bench/explain/message_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace verbena::bench {

namespace {

using sim::PacketKind;
using sim::Step;
using sim::StepKind;
using sim::Time;

bool is_ack(const Step& step) {
  return step.packet == PacketKind::kAck || step.packet == PacketKind::kNak;
}

// What a message waits for that does not go on at once with the first of these steps, which come
// after the wait.
StepKind wait_before(std::span<const Step> steps) {
  for (const Step& next : steps) {
    switch (next.kind) {
      case StepKind::kBusWait:
        continue;  // for what comes behind it
      case StepKind::kSend:
      case StepKind::kSendMiss:
        return StepKind::kTurn;
      case StepKind::kPacing:
      case StepKind::kPayloadFetch:
        return StepKind::kSameQueuePair;
      case StepKind::kLink:
        return StepKind::kSwitchQueue;
      case StepKind::kPlacement:
      case StepKind::kCompletionEntry:
        return StepKind::kReceiveEntry;
      default:
        return StepKind::kUnexplained;
    }
  }
  return StepKind::kUnexplained;
}

bool finds_message(StepKind kind) { return kind == StepKind::kHandle || kind == StepKind::kTake; }
bool finds_nothing(StepKind kind) {
  return kind == StepKind::kPoll || kind == StepKind::kPollEmpty || kind == StepKind::kIdle;
}

Status not_recorded(const char* what) {
  return Status(StatusCode::kNotFound,
                fmt::format("the simulation has not recorded {} of this message", what));
}

}  // namespace

Time MessagePath::sum() const {
  Time sum = 0;
  for (const Step& step : steps) sum += step.end - step.begin;
  return sum;
}

Time MessagePath::unexplained() const {
  Time sum = 0;
  for (const Step& step : steps) {
    if (step.kind == StepKind::kUnexplained) sum += step.end - step.begin;
  }
  return sum;
}

bool MessagePath::adds_up() const {
  const Time measured = measured_ns * sim::kPsPerNs;
  const Time all = sum();
  return unexplained() == 0 && all + sim::kPsPerNs > measured && all < measured + sim::kPsPerNs;
}

std::vector<Step> tile(std::vector<Step> steps, Time from, Time to) {
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.begin < b.begin; });
  std::vector<Step> tiled;
  Time at = from;
  for (size_t i = 0; i < steps.size(); ++i) {
    Step step = steps[i];
    step.begin = std::max(step.begin, at);
    step.end = std::min(step.end, to);
    if (step.begin >= step.end) continue;
    if (step.begin > at) {
      Step wait = step;
      wait.kind = wait_before(std::span<const Step>(steps).subspan(i));
      wait.begin = at;
      wait.end = step.begin;
      tiled.push_back(wait);
    }
    at = step.end;
    tiled.push_back(step);
  }
  if (at < to) tiled.push_back({.begin = at, .end = to});
  return tiled;
}

std::vector<Step> merged(const std::vector<Step>& steps) {
  std::vector<Step> result;
  for (const Step& step : steps) {
    const bool same = !result.empty() && result.back().kind == step.kind &&
                      result.back().node == step.node && result.back().thread == step.thread &&
                      result.back().end == step.begin;
    if (same) {
      result.back().end = step.end;
    } else {
      result.push_back(step);
    }
  }
  return result;
}

MessagePaths::MessagePaths(const sim::Recorder& recorder, MarkLayout layout)
    : recorder_(recorder), layout_(layout), by_thread_(recorder.threads().size()) {
  for (uint32_t i = 0; i < recorder.steps().size(); ++i) {
    const Step& step = recorder.steps()[i];
    if (step.thread != sim::kNoThread) {
      by_thread_[step.thread].push_back(i);
    } else {
      by_message_[step.message].push_back(i);
    }
  }
  for (uint32_t i = 0; i < recorder.posts().size(); ++i) {
    posts_[recorder.posts()[i].message] = i;
    by_ring_.push_back(i);
  }
  // Threads may be ahead of each other.
  std::stable_sort(by_ring_.begin(), by_ring_.end(), [&](uint32_t a, uint32_t b) {
    return recorder.posts()[a].rang_at < recorder.posts()[b].rang_at;
  });
}

const MessagePaths::Post* MessagePaths::find_request(const sim::Recorder::Taken& taken,
                                                     Time from) const {
  const std::vector<Post>& posts = recorder_.posts();
  const uint32_t node = recorder_.threads()[taken.thread].node;
  auto at =
      std::lower_bound(by_ring_.begin(), by_ring_.end(), from,
                       [&](uint32_t number, Time when) { return posts[number].rang_at < when; });
  const Post* found = nullptr;
  for (; at != by_ring_.end() && posts[*at].rang_at <= taken.taken; ++at) {
    const Post& post = posts[*at];
    if (taken.request == 0 && taken.response == 0) {
      // Of a program that copies what it sends: what its thread posts first.
      if (post.thread == taken.thread) return &post;
      continue;
    }
    // A READ's WQE names where the response goes.
    const uint64_t place = post.opcode == IBV_WR_RDMA_READ ? taken.response : taken.request;
    const bool covers = place >= post.address && place - post.address <= post.length_bytes;
    if (post.message.node != node || !covers) continue;
    // The bytes behind a message may be those of the next one, which begins there.
    if (found == nullptr || post.address >= found->address) found = &post;
  }
  return found;
}

const MessagePaths::Post* MessagePaths::find_response(const sim::Recorder::Taken& taken,
                                                      Time from) const {
  const std::vector<sim::Recorder::Placed>& placed = recorder_.placed();
  const uint32_t node = recorder_.threads()[taken.thread].node;
  auto at =
      std::lower_bound(placed.begin(), placed.end(), from,
                       [](const sim::Recorder::Placed& one, Time when) { return one.at < when; });
  const sim::Recorder::Placed* found = nullptr;
  for (; at != placed.end() && at->at <= taken.taken; ++at) {
    const bool copied = taken.request == 0 && taken.response == 0 && at->message.node != node;
    const bool covers =
        copied || (taken.response >= at->address && taken.response - at->address < at->bytes);
    if (at->node == node && covers) found = &*at;
  }
  if (found == nullptr) return nullptr;
  const auto post = posts_.find(found->message);
  return post == posts_.end() ? nullptr : &recorder_.posts()[post->second];
}

// Where a message's signal is a WRITE of one byte behind it, that is what a thread sees.
sim::MessageId MessagePaths::seen_wqe(const Post& post) const {
  sim::MessageId next = post.message;
  ++next.number;
  const auto signal = posts_.find(next);
  if (layout_ != MarkLayout::kDense || signal == posts_.end() || post.length_bytes == 1) {
    return post.message;
  }
  const Post& behind = recorder_.posts()[signal->second];
  return behind.first == post.first && behind.length_bytes == 1 ? next : post.message;
}

// The steps that its last packet depends on.
std::vector<Step> MessagePaths::of_message(const sim::MessageId& id) const {
  std::vector<Step> steps;
  const auto found = by_message_.find(id);
  if (found == by_message_.end()) return steps;
  std::optional<uint32_t> last_request;
  std::optional<uint32_t> last_response;
  for (const uint32_t number : found->second) {
    const Step& step = recorder_.steps()[number];
    if (is_ack(step) || step.index == sim::kAllPackets) continue;
    auto& last = step.packet == PacketKind::kRequest ? last_request : last_response;
    last = std::max(last.value_or(0), step.index);
  }
  for (const uint32_t number : found->second) {
    const Step& step = recorder_.steps()[number];
    if (is_ack(step)) continue;
    const auto& last = step.packet == PacketKind::kRequest ? last_request : last_response;
    if (step.index == sim::kAllPackets || step.index == last) steps.push_back(step);
  }
  return steps;
}

std::vector<Step> MessagePaths::of_thread(uint32_t thread, Time from, Time to) const {
  const std::vector<uint32_t>& numbers = by_thread_[thread];
  const std::vector<Step>& all = recorder_.steps();
  auto at = std::upper_bound(numbers.begin(), numbers.end(), from,
                             [&](Time when, uint32_t number) { return when < all[number].end; });
  std::vector<Step> steps;
  for (; at != numbers.end() && all[*at].begin < to; ++at) steps.push_back(all[*at]);
  return steps;
}

std::vector<Step> MessagePaths::thread_part(uint32_t thread, Time from, Time to, bool finds,
                                            const Post* post) const {
  std::vector<Step> steps = tile(of_thread(thread, from, to), from, to);
  const auto posts_other = [&](const Step& step) {
    return step.named && (post == nullptr || step.message.node != post->message.node ||
                          step.message.queue_pair != post->message.queue_pair ||
                          step.message.number != post->first);
  };
  // From `own` on the thread works for this message: what it finds last before it goes on.
  size_t own = 0;
  if (finds) {
    own = steps.size();
    for (size_t i = 0; i < steps.size(); ++i) {
      if (finds_message(steps[i].kind)) own = i;
    }
    for (size_t i = 0; own == steps.size() && i < steps.size(); ++i) {
      if (steps[i].named && !posts_other(steps[i])) own = i;
    }
    // A received message is found by its completion.
    if (own > 0 && own < steps.size() && steps[own].kind == StepKind::kHandle &&
        steps[own - 1].kind == StepKind::kTake) {
      --own;
    }
    // The call that finds it costs what one costs that finds nothing.
    if (own > 0 && own < steps.size() && steps[own].kind == StepKind::kTake &&
        steps[own - 1].kind == StepKind::kPollEmpty) {
      --own;
    }
  }
  // Polls between other messages are part of them: only those behind the last one find this one.
  size_t first_other = own;
  size_t end_of_others = 0;
  for (size_t i = 0; i < own; ++i) {
    if (finds_nothing(steps[i].kind)) continue;
    first_other = std::min(first_other, i);
    end_of_others = i + 1;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    StepKind& kind = steps[i].kind;
    if (kind == StepKind::kUnexplained || kind == StepKind::kAsleep) continue;
    if (i < own) {
      const bool other = i >= first_other && i < end_of_others;
      kind = other ? StepKind::kOtherMessages : StepKind::kDetection;
    } else if (posts_other(steps[i]) || (!finds && finds_message(kind))) {
      kind = StepKind::kOtherMessages;
    }
  }
  return steps;
}

// When the thread has handed something over: the first time, or the first after it found something.
Time MessagePaths::first_hand_over(uint32_t thread, Time from, Time to, bool finds) const {
  bool found = !finds;
  for (const Step& step : of_thread(thread, from, to)) {
    found = found || finds_message(step.kind);
    if (found && step.kind == StepKind::kHandOver) return std::min(step.end, to);
  }
  return from;
}

void MessagePaths::add_beside(const char* what, const sim::MessageId& id, MessagePath* path) const {
  constexpr uint64_t kMostTogether = 1024;
  // One acknowledgement may be for several messages, of which it names the last.
  bool acked = false;
  bool completed = false;
  for (sim::MessageId later = id; later.number < id.number + kMostTogether; ++later.number) {
    const auto found = by_message_.find(later);
    if (found == by_message_.end()) break;
    BesidePath ack{.text = fmt::format("acknowledgement of the {}", what), .node = id.node};
    BesidePath completion{.text = fmt::format("completion of the {}'s WQE", what), .node = id.node};
    bool sent = false;  // nothing acknowledges what goes over queue pairs without reliability
    for (const uint32_t number : found->second) {
      const Step& step = recorder_.steps()[number];
      if (!is_ack(step)) continue;
      sent = sent || step.kind == StepKind::kSend;
      BesidePath& one = step.kind == StepKind::kCompletionEntry ? completion : ack;
      if (one.end == 0) one.begin = step.begin;
      one.end = std::max(one.end, step.end);
    }
    if (!acked && sent) path->beside.push_back(ack);
    acked = acked || sent;
    if (!completed && completion.end != 0) path->beside.push_back(completion);
    completed = completed || completion.end != 0;
    if (acked) break;
  }
}

Result<MessagePath> MessagePaths::find(const sim::Recorder::Taken& taken) const {
  MessagePath path;
  path.measured_ns = taken.taken_ns - taken.posted_ns;
  // The thread's clock counts whole nanoseconds; the message begins where a step does.
  Time from = taken.posted_ns * sim::kPsPerNs;
  for (const Step& step : of_thread(taken.thread, from, from + sim::kPsPerNs)) {
    if (step.begin >= from) {
      from = step.begin;
      break;
    }
  }
  const Post* const request = find_request(taken, from);
  if (request == nullptr || request->thread == sim::kNoThread) return not_recorded("the post");
  const auto append = [&path](std::vector<Step> steps) {
    path.steps.insert(path.steps.end(), steps.begin(), steps.end());
  };
  const uint32_t poster = request->thread;
  const bool handed_over = poster != taken.thread;
  if (handed_over) {
    const Time given = first_hand_over(taken.thread, from, request->rang_at, /*finds=*/false);
    append(thread_part(taken.thread, from, given, /*finds=*/false, nullptr));
    append(thread_part(poster, given, request->rang_at, /*finds=*/true, request));
  } else {
    append(thread_part(poster, from, request->rang_at, /*finds=*/false, request));
  }

  // Over to the other side; false: that was not recorded, or something came before its cause.
  Time visible = 0;
  const auto carry = [&](const sim::MessageId& id, Time posted) {
    const std::vector<Step> steps = of_message(id);
    for (const Step& step : steps) visible = std::max(visible, step.end);
    if (steps.empty() || visible <= posted || visible > taken.taken) return false;
    append(tile(steps, posted, visible));
    return true;
  };
  const sim::MessageId asked = seen_wqe(*request);
  if (!carry(asked, request->rang_at)) return not_recorded("the request's way");
  if (request->opcode != IBV_WR_RDMA_READ) {
    add_beside("request", asked, &path);
    const Post* const response = find_response(taken, from);
    if (response == nullptr || response->thread == sim::kNoThread || response->rang_at < visible) {
      return not_recorded("the response's post");
    }
    append(thread_part(response->thread, visible, response->rang_at, /*finds=*/true, response));
    const sim::MessageId answered = seen_wqe(*response);
    if (!carry(answered, response->rang_at)) return not_recorded("the response's way");
    add_beside("response", answered, &path);
  }
  if (handed_over) {
    const Time given = first_hand_over(poster, visible, taken.taken, /*finds=*/true);
    append(thread_part(poster, visible, given, /*finds=*/true, nullptr));
    visible = given;
  }
  append(thread_part(taken.thread, visible, taken.taken, /*finds=*/!handed_over, nullptr));
  if (path.steps.empty()) return not_recorded("any step");
  return path;
}

}  // namespace verbena::bench
