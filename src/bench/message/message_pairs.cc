#include "src/bench/message/message_pairs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/size_list.h"

namespace verbena::bench {

namespace {

// Both windows of a peer: one that comes, and the next one, which rank 0 may begin at once.
uint32_t places_of(const MessageSettings& settings) {
  return has_window(settings.test) ? 2 * settings.window : 1;
}

bool is_fresh_memory(const MessageSettings& settings) {
  return settings.test == MessageTest::kLatency && settings.memory == MessageMemoryUse::kFresh;
}
// Of buffers that last.
uint64_t kept_bytes(const MessageSettings& settings) {
  return is_fresh_memory(settings) ? 1 : settings.size_bytes;
}

}  // namespace

uint64_t pair_memory_bytes(const Point& point) {
  const MessageSettings& settings = message_settings(point);
  if (settings.test == MessageTest::kProgress) return 0;
  return settings.buffers * MessageBuffers::stride(settings.size_bytes, settings.placement) +
         places_of(settings) * MessageBuffers::stride(settings.size_bytes, BufferPlacement::kPages);
}

MessagePairs::MessagePairs(MessageRank& rank)
    : rank_(rank),
      size_bytes_(rank.settings().size_bytes),
      window_(rank.settings().window),
      places_(places_of(rank.settings())),
      sent_from_(rank.settings().buffers, kept_bytes(rank.settings()), rank.settings().placement),
      received_into_(places_, kept_bytes(rank.settings()), BufferPlacement::kPages),
      order_(rank.settings().buffers, rank.settings().use) {}

Status MessagePairs::open() {
  if (sent_from_.is_there() && received_into_.is_there()) {
    if (is_one_sided(rank_.settings().test) && rank_.number() != 0 &&
        !rank_.expose(received_into_.at(0), size_bytes_)) {
      return rank_.status();
    }
    return Status::ok_status();
  }
  return {StatusCode::kLimitExceeded,
          fmt::format("this machine has no memory for {} buffers of {}; lower --buffers, --window "
                      "or --size",
                      rank_.settings().buffers + places_, size_text(size_bytes_))};
}

void MessagePairs::begin() {
  sent_.assign(rank_.size(), 0);
  received_.assign(rank_.size(), 0);
  posted_.assign(rank_.size(), 0);
  operations_ = 0;
  if (rank_.number() != 0 && rank_.settings().test == MessageTest::kGet && rank_.verifies()) {
    rank_.fill(received_into_.at(0), size_bytes_, rank_.number(), 0);
  }
  if (rank_.number() == 0 || !is_active() || !has_window(rank_.settings().test)) return;
  for (uint32_t i = 0; i < places_; ++i) receive_next(0, kAsk);
}

bool MessagePairs::run() {
  const uint32_t peer = rank_.size() - rank_.settings().active +
                        static_cast<uint32_t>(operations_++ % rank_.settings().active);
  switch (rank_.settings().test) {
    case MessageTest::kBandwidth:
      return push(peer);
    case MessageTest::kBidirectional:
      return swap_windows(peer);
    case MessageTest::kProgress:
      rank_.messenger().progress();
      return true;
    case MessageTest::kPut:
    case MessageTest::kGet:
      return reach(peer);
    default:
      return exchange(peer);
  }
}

void MessagePairs::answer() {
  if (!is_active() || rank_.settings().test == MessageTest::kProgress) {
    // Nothing comes, and the connection is not used. Credits may still have to go back.
    while (rank_.idle()) {
    }
    return;
  }
  if (has_window(rank_.settings().test)) {
    while (answer_window()) ++operations_;
    return;
  }
  if (is_one_sided(rank_.settings().test)) {
    while (await_reaches()) ++operations_;
    return;
  }
  while (receive_next(0, kAsk) && rank_.wait_all()) {
    check_received(0, 1);
    if (!send_next(0, kAnswer)) return;
    ++operations_;
  }
}

// As MPI_Send and MPI_Recv: the receive is posted once the message was sent.
bool MessagePairs::exchange(uint32_t peer) {
  if (!send_next(peer, kAsk) || !receive_next(peer, kAnswer) || !rank_.wait_all()) return false;
  check_received(peer, 1);
  return true;
}

// A put or get, and then both ranks know that it is done, as behind an MPI_Win_fence.
bool MessagePairs::reach(uint32_t peer) {
  const bool puts = rank_.settings().test == MessageTest::kPut;
  char* const bytes = sent_from_.at(order_.next());
  const uint64_t number = sent_[peer]++;
  if (puts && rank_.verifies()) rank_.fill(bytes, size_bytes_, 0, number);
  if (!(puts ? rank_.put(peer, bytes, size_bytes_) : rank_.get(peer, bytes, size_bytes_)) ||
      !rank_.wait_sends()) {
    return false;
  }
  if (!puts && rank_.verifies()) rank_.check(bytes, size_bytes_, peer, number);
  return rank_.send(peer, kAnswer, &answer_, 0) && rank_.receive(peer, kAnswer, &answer_, 0) &&
         rank_.wait_all();
}

// Of a peer, whose memory is reached.
bool MessagePairs::await_reaches() {
  if (!rank_.receive(0, kAnswer, &answer_, 0) || !rank_.wait_receives()) return false;
  const uint64_t number = received_[0]++;
  if (rank_.verifies()) {
    char* const bytes = received_into_.at(0);
    if (rank_.settings().test == MessageTest::kPut) {
      rank_.check(bytes, size_bytes_, 0, number);
    } else {
      rank_.fill(bytes, size_bytes_, rank_.number(), number + 1);
    }
  }
  return rank_.send(0, kAnswer, &answer_, 0) && rank_.wait_all();
}

bool MessagePairs::push(uint32_t peer) {
  if (!rank_.receive(peer, kAnswer, &answer_, 0)) return false;
  for (uint32_t i = 0; i < window_; ++i) {
    if (!send_next(peer, kAsk)) return false;
  }
  return rank_.wait_all();
}

bool MessagePairs::swap_windows(uint32_t peer) {
  for (uint32_t i = 0; i < window_; ++i) {
    if (!receive_next(peer, kAnswer)) return false;
  }
  for (uint32_t i = 0; i < window_; ++i) {
    if (!send_next(peer, kAsk)) return false;
  }
  if (!rank_.wait_all()) return false;
  check_received(peer, window_);
  return true;
}

bool MessagePairs::answer_window() {
  const bool both_ways = rank_.settings().test == MessageTest::kBidirectional;
  // The next window's receives stay posted.
  if (both_ways) {
    if (!rank_.wait_receives(places_ - 1)) return false;
    for (uint32_t i = 0; i < window_; ++i) {
      if (!send_next(0, kAnswer)) return false;
    }
  }
  if (!rank_.wait_receives(places_ - window_)) return false;
  check_received(0, window_);
  for (uint32_t i = 0; i < window_; ++i) {
    if (!receive_next(0, kAsk)) return false;
  }
  return both_ways ? rank_.wait_sends() : rank_.send(0, kAnswer, &answer_, 0);
}

bool MessagePairs::is_fresh() const { return is_fresh_memory(rank_.settings()); }

char* MessagePairs::map_fresh(FreshMemory& memory) {
  char* const bytes = memory.next(size_bytes_);
  if (bytes == nullptr) {
    rank_.give_up({StatusCode::kLimitExceeded,
                   fmt::format("this machine has no {} for a message; lower --size",
                               size_text(size_bytes_))});
  }
  return bytes;
}

bool MessagePairs::send_next(uint32_t to, Step step) {
  char* bytes = nullptr;
  if (is_fresh()) {
    // The one before is read from until it has come.
    if (!rank_.wait_sends() || (bytes = map_fresh(sent_fresh_)) == nullptr) return false;
    for (uint64_t at = 0; at < size_bytes_; at += kBufferPageBytes) bytes[at] = 1;
  } else {
    bytes = sent_from_.at(order_.next());
  }
  if (rank_.verifies()) {
    // What is on its way may still be read from there.
    if (!rank_.wait_sends()) return false;
    rank_.fill(bytes, size_bytes_, rank_.number(), sent_[to]++);
  }
  return rank_.send(to, step, bytes, size_bytes_);
}

bool MessagePairs::receive_next(uint32_t from, Step step) {
  char* const bytes =
      is_fresh() ? map_fresh(received_fresh_) : received_into_.at(posted_[from] % places_);
  ++posted_[from];
  return bytes != nullptr && rank_.receive(from, step, bytes, size_bytes_);
}

void MessagePairs::check_received(uint32_t from, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t number = received_[from]++;
    if (rank_.verifies()) {
      const char* const bytes =
          is_fresh() ? received_fresh_.get() : received_into_.at(number % places_);
      rank_.check(bytes, size_bytes_, from, number);
    }
  }
}

}  // namespace verbena::bench
