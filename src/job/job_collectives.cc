// What all ranks of a job do together over their control connections.
#include <fmt/format.h>

#include <cstring>

#include "src/base/assert.h"
#include "src/base/wire.h"
#include "src/control/tcp_socket.h"
#include "src/job/job_state.h"
#include "src/job/member.h"
#include "verbena/job.h"

namespace verbena {

namespace {

// The first word of each frame: which call of how many sent it, so that ranks that have lost each
// other say so instead of taking one thing for another.
enum class Call : uint32_t { kArrive = 0x4a4f4201, kGo, kGather, kBroadcast };
constexpr size_t kCallBytes = sizeof(uint32_t);

std::string name_of(const Job& job, int rank) {
  return fmt::format("rank {} on {}", rank, job.host(rank));
}

Status named(const Job& job, int rank, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), fmt::format("{}: {}", name_of(job, rank), status.message()));
}

Status send_to(Job& job, int rank, Call call, std::span<const std::byte> bytes,
               const Deadline& deadline) {
  std::vector<std::byte> frame(kCallBytes + bytes.size());
  store_little_endian(frame.data(), static_cast<uint32_t>(call));
  if (!bytes.empty()) std::memcpy(frame.data() + kCallBytes, bytes.data(), bytes.size());
  return named(job, rank, job.peer(rank).send(frame, deadline.remaining_ns()));
}

Result<std::vector<std::byte>> receive_from(Job& job, int rank, Call call,
                                            const Deadline& deadline) {
  Result<std::vector<std::byte>> frame = job.peer(rank).receive(deadline.remaining_ns());
  if (!frame.ok()) return named(job, rank, frame.status());
  if (const Status refusal = job::refusal_in(*frame); !refusal.ok())
    return named(job, rank, refusal);
  if (frame->size() < kCallBytes ||
      load_little_endian<uint32_t>(frame->data()) != static_cast<uint32_t>(call)) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("{} sent another message than this rank expects; all ranks must "
                              "make the same calls in the same order",
                              name_of(job, rank)));
  }
  frame->erase(frame->begin(), frame->begin() + kCallBytes);
  return frame;
}

}  // namespace

Status Job::barrier(int64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  if (rank() != 0) {
    VERBENA_RETURN_IF_ERROR(send_to(*this, 0, Call::kArrive, {}, deadline));
    return receive_from(*this, 0, Call::kGo, deadline).status();
  }
  for (int other = 1; other < size(); ++other) {
    VERBENA_RETURN_IF_ERROR(receive_from(*this, other, Call::kArrive, deadline).status());
  }
  for (int other = 1; other < size(); ++other) {
    VERBENA_RETURN_IF_ERROR(send_to(*this, other, Call::kGo, {}, deadline));
  }
  return {};
}

Result<std::vector<std::vector<std::byte>>> Job::gather(std::span<const std::byte> mine, int root,
                                                        int64_t timeout_ns) {
  VERBENA_ASSERT(root >= 0 && root < size());
  const Deadline deadline(timeout_ns);
  std::vector<std::vector<std::byte>> all;
  if (rank() != root) {
    VERBENA_RETURN_IF_ERROR(send_to(*this, root, Call::kGather, mine, deadline));
    return all;
  }
  for (int other = 0; other < size(); ++other) {
    if (other == root) {
      all.emplace_back(mine.begin(), mine.end());
      continue;
    }
    VERBENA_ASSIGN_OR_RETURN(std::vector<std::byte> bytes,
                             receive_from(*this, other, Call::kGather, deadline));
    all.push_back(std::move(bytes));
  }
  return all;
}

Result<std::vector<std::byte>> Job::broadcast(std::span<const std::byte> bytes, int root,
                                              int64_t timeout_ns) {
  VERBENA_ASSERT(root >= 0 && root < size());
  const Deadline deadline(timeout_ns);
  if (rank() != root) return receive_from(*this, root, Call::kBroadcast, deadline);
  for (int other = 0; other < size(); ++other) {
    if (other == root) continue;
    VERBENA_RETURN_IF_ERROR(send_to(*this, other, Call::kBroadcast, bytes, deadline));
  }
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

}  // namespace verbena
