#include "src/bench/message/replay_source.h"

#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <mutex>
#include <string>

#include "src/bench/message/message_settings.h"
#include "src/bench/message/replay_memory.h"
#include "src/bench/message/replay_schedule.h"
#include "src/trace/nas_skeleton.h"
#include "src/trace/rank_decoder.h"

namespace verbena::bench {

namespace {

using JobPointer = std::shared_ptr<const trace::RecordedJob>;

Result<trace::RecordedJob> make_job(const Point& point) {
  const MessageSettings& settings = message_settings(point);
  if (settings.skeleton != ReplaySkeleton::kRecorded) {
    return trace::make_nas_recording({.kernel = kernel_of(settings.skeleton),
                                      .size = settings.nas_class,
                                      .ranks = message_ranks(point),
                                      .iterations = settings.iterations,
                                      .mops_per_s = static_cast<double>(settings.mops)});
  }
  const char* folder = std::getenv(kRecordingVariable);
  if (folder == nullptr || *folder == '\0') {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("which recording? name its folder by {}, or use `verbena trace "
                              "replay`; or choose a --skeleton",
                              kRecordingVariable));
  }
  return trace::read_recording(folder);
}

std::string name_of(const Point& point) {
  const MessageSettings& settings = message_settings(point);
  if (settings.skeleton == ReplaySkeleton::kRecorded) {
    const char* folder = std::getenv(kRecordingVariable);
    return folder != nullptr ? folder : "";
  }
  return fmt::format("\n{} {} {} {} {}", replay_skeleton_name(settings.skeleton),
                     trace::nas_class_name(settings.nas_class), message_ranks(point),
                     settings.iterations, settings.mops);
}

}  // namespace

Result<JobPointer> replay_job(const Point& point) {
  // The last one: ranks that are threads of one process ask one after the other.
  static std::mutex mutex;
  static std::string last_name;
  static JobPointer last;
  const std::lock_guard lock(mutex);
  const std::string name = name_of(point);
  if (last == nullptr || name != last_name) {
    VERBENA_ASSIGN_OR_RETURN(trace::RecordedJob job, make_job(point));
    last = std::make_shared<const trace::RecordedJob>(std::move(job));
    last_name = name;
  }
  if (last->size() != message_ranks(point)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is of {} ranks, and there are {}; choose --peers {}", last->name,
                              last->size(), message_ranks(point), last->size() - 1));
  }
  for (const trace::RankRecording& rank : last->ranks) {
    if (rank.threads <= 1) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} threads of rank {} of {} called MPI, and only one of a rank can "
                              "be replayed; `verbena trace show` has the summary",
                              rank.threads, rank.rank, last->name));
  }
  return last;
}

uint64_t replay_memory_bytes(const trace::RecordedJob& job) {
  uint64_t bytes = 0;
  for (uint32_t rank = 0; rank < job.size(); ++rank) bytes += ReplayMemory(job, rank).size_bytes();
  return bytes;
}

uint64_t replay_messages(const trace::RecordedJob& job) {
  uint64_t messages = 0;
  for (const trace::RankRecording& rank : job.ranks) {
    for (const trace::Event& event : rank.events) {
      if (event.operation == trace::Operation::kSend ||
          event.operation == trace::Operation::kStartSend) {
        ++messages;
      } else if (trace::is_collective(event.operation)) {
        const uint64_t members = job.communicators[event.communicator].size();
        messages += event.operation == trace::Operation::kAlltoall
                        ? members
                        : static_cast<uint64_t>(std::bit_width(members));
      }
    }
  }
  return messages;
}

}  // namespace verbena::bench
