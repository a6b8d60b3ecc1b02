#include "src/bench/baselines/ping_pong.h"

#include <infiniband/verbs.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/base/tsc.h"
#include "src/bench/baselines/verbs_end.h"
#include "src/bench/load/closed_loop.h"
#include "src/bench/request_response/answer_loop.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/request_response/request_work.h"
#include "src/rpc/designs.h"
#include "verbena/connection.h"

namespace verbena::bench::baselines {

namespace {

// Side 0 serves and measures: it calls throw_ball() and then catch_ball(); side 1 the other way
// round. Both are called with the number of the round trip, from 1.
template <typename Throw, typename Catch>
Status play(Side& side, uint64_t round_trips, Throw&& throw_ball, Catch&& catch_ball) {
  const uint64_t warm_up = round_trips / 10;
  const uint64_t all = warm_up + round_trips;
  uint64_t played = 0;
  if (side.number() == 1) {
    while (played < all && catch_ball(played + 1) && throw_ball(played + 1)) ++played;
  } else {
    // One store per round trip; the arithmetic comes afterwards.
    std::vector<uint64_t> stamps(all + 1);
    stamps[0] = read_tsc();
    while (played < all && throw_ball(played + 1) && catch_ball(played + 1)) {
      stamps[++played] = read_tsc();
    }
    const auto round_trip = std::make_unique<Histogram>();
    for (uint64_t i = warm_up; i < played; ++i) round_trip->record(stamps[i + 1] - stamps[i]);
    side.set_result(tsc_to_ns(round_trip->quantile(0.5)) / 2);
  }
  if (played < all) {
    return Status(StatusCode::kUnavailable,
                  "the ping-pong ended early: a work request or the other process failed");
  }
  return side.meet();
}

// Polls until `arrived()`, but not for ever: the other process may be dead.
template <typename Arrived>
bool poll_for(const Side& side, Arrived&& arrived) {
  const std::atomic<uint64_t>& failed = side.board().failed[1 - side.number()].value;
  constexpr uint32_t kPollsPerPause = 1u << 16;
  Waiter waiter;
  for (uint32_t polls = 1; !arrived(); ++polls) {
    waiter.idle();
    if (polls % kPollsPerPause == 0 && failed.load(std::memory_order_relaxed) != 0) return false;
  }
  return true;
}

struct alignas(4096) Page {
  char bytes[4096] = {};
};

Status write_ping_pong(Side& side, uint64_t round_trips) {
  const auto page = std::make_unique<Page>();
  VERBENA_ASSIGN_OR_RETURN(const auto end,
                           VerbsEnd::connect(side, page->bytes, sizeof(page->bytes)));
  InlineSender sender(*end);
  sender.request().opcode = IBV_WR_RDMA_WRITE;
  sender.request().wr.rdma.remote_addr = end->remote_address();
  sender.request().wr.rdma.rkey = end->remote_rkey();
  // The last byte tells: it is the number's highest one, so the number travels shifted.
  const char* last_byte = page->bytes + 7;
  return play(
      side, round_trips, [&](uint64_t i) { return sender.send(i << 56 | i); },
      [&](uint64_t i) {
        return poll_for(side, [&] { return load_acquire(last_byte) == static_cast<char>(i); });
      });
}

Status send_ping_pong(Side& side, uint64_t round_trips, uint32_t queue_pairs) {
  const auto page = std::make_unique<Page>();
  VERBENA_ASSIGN_OR_RETURN(const auto end,
                           VerbsEnd::connect(side, page->bytes, sizeof(page->bytes), queue_pairs));
  ibv_sge element{};
  element.addr = reinterpret_cast<uint64_t>(page->bytes);
  element.length = 8;
  element.lkey = end->lkey();
  ibv_recv_wr receive{};
  receive.sg_list = &element;
  receive.num_sge = 1;
  const auto post_receive = [&] {
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(end->queue_pair(), &receive, &bad) == 0;
  };
  for (uint32_t i = 0; i < VerbsEnd::kReceiveDepth / 2; ++i) {
    if (!post_receive()) return Status(StatusCode::kUnavailable, "a receive could not be posted");
  }
  VERBENA_RETURN_IF_ERROR(side.meet());
  InlineSender sender(*end);
  sender.request().opcode = IBV_WR_SEND;
  bool healthy = true;
  bool taken = false;  // a receive that is to be given back
  return play(
      side, round_trips,
      [&](uint64_t i) {
        const bool sent = sender.send(i);
        // Behind the message, where nobody waits for it.
        if (taken) healthy = post_receive() && healthy;
        taken = false;
        return sent && healthy;
      },
      [&](uint64_t) {
        ibv_wc completion;
        int found = 0;
        const bool arrived = poll_for(side, [&] {
          found = ibv_poll_cq(end->receive_completions(), 1, &completion);
          return found != 0;
        });
        taken = true;
        return arrived && found == 1 && completion.status == IBV_WC_SUCCESS;
      });
}

}  // namespace

Result<double> cache_line_one_way_ns(const CpuPair& cpus, uint64_t round_trips) {
  return run_pair(cpus, [&](Side& side) {
    // One line that both write, as in a ping-pong of one word.
    std::atomic<uint64_t>& ball = side.board().ball[0].value;
    VERBENA_RETURN_IF_ERROR(side.meet());
    const uint64_t mine = side.number() == 0 ? 1 : 2;
    return play(
        side, round_trips,
        [&](uint64_t i) {
          ball.store(2 * i + mine, std::memory_order_release);
          return true;
        },
        [&](uint64_t i) {
          return poll_for(
              side, [&] { return ball.load(std::memory_order_acquire) == 2 * i + (3 - mine); });
        });
  });
}

Result<double> write_one_way_ns(const CpuPair& cpus, uint64_t round_trips) {
  return run_pair(cpus, [&](Side& side) { return write_ping_pong(side, round_trips); });
}

Result<double> send_one_way_ns(const CpuPair& cpus, uint64_t round_trips, uint32_t queue_pairs) {
  return run_pair(cpus, [&](Side& side) { return send_ping_pong(side, round_trips, queue_pairs); });
}

Result<double> write_write_round_trip_ns(const CpuPair& cpus, uint64_t round_trips) {
  return run_connected_pair(cpus, [&](const ConnectedSide& own) -> Status {
    const std::atomic<bool> never{false};
    const Point point = request_response_workload().point();
    const RequestResponseSettings& settings = request_response_settings(point);
    using Design = rpc::WriteWrite<channel::LastBitMark>;
    if (own.side.number() == 1) {
      ResponderOptions options;
      options.response_max_bytes = settings.response_bytes;
      VERBENA_ASSIGN_OR_RETURN(auto responder,
                               Design::Responder::create(own.device, own.domain, options));
      VERBENA_RETURN_IF_ERROR(responder->connect(own.control));
      AnswerWork work(point, /*verify=*/false, {0});
      PollCount polls;
      // Ends when the requester leaves.
      static_cast<void>(
          answer_until_halt(*responder, never, polls, /*block=*/false, /*cost=*/nullptr, work));
      return Status::ok_status();
    }
    RequesterOptions options;
    options.response_max_bytes = settings.response_bytes;
    VERBENA_ASSIGN_OR_RETURN(
        auto requester, Design::Requester::create(own.device, own.domain, own.control, options));
    Design::Requester* const targets[] = {requester.get()};
    MessageWork works[] = {MessageWork(point, /*verify=*/false, 0)};
    const auto latency = std::make_unique<Histogram>();
    LoopOrders orders;
    orders.length.duration_ns = 20'000'000'000;
    for (const uint64_t requests : {round_trips / 10, round_trips}) {  // the first to warm up
      orders.length.requests = requests;
      latency->clear();
      ClosedLoop<Design::Requester, MessageWork, false> loop(targets, works, orders, never);
      const LoopOutcome outcome = loop.run_timed({latency.get(), 1});
      VERBENA_RETURN_IF_ERROR(outcome.status);
    }
    own.side.set_result(LoopClock().to_ns(latency->quantile(0.5)));
    return Status::ok_status();
  });
}

}  // namespace verbena::bench::baselines
