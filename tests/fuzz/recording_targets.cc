// Recordings of MPI programs, which come from other machines and other releases.
#include "src/trace/rank_decoder.h"
#include "src/trace/rank_encoder.h"
#include "src/trace/recording.h"
#include "src/trace/recordings_for_test.h"
#include "tests/fuzz/targets.h"

namespace verbena::fuzz {
namespace {

// Rank 0 of two, without its checksum, which would hide what follows from the rest.
Status run_recording(std::span<const std::byte> input) {
  // Of exactly this size, so that the byte behind it is nobody's.
  Bytes file;
  file.reserve(input.size() + trace::kChecksumBytes);
  file.assign(input.begin(), input.end());
  const uint64_t sum = trace::checksum(input);
  for (size_t i = 0; i < trace::kChecksumBytes; ++i) {
    file.push_back(static_cast<std::byte>(sum >> (8 * i)));
  }
  auto rank = trace::decode_rank(file, "fuzz");
  require_readable(rank.status());
  if (!rank.ok()) return rank.status();
  require(rank->rank < rank->size, "a rank is one of the job's");
  for (const trace::Event& event : rank->events) {
    require(uint64_t{event.first} + event.count <= rank->numbers.size(), "a list is there");
    require(event.operation == trace::Operation::kWait ||
                event.communicator < rank->communicators.size(),
            "a communicator is there");
  }
  if (rank->size != 2 || rank->rank != 0) return rank.status();
  trace::RecordedJob job = trace::job_of(trace::two_ranks());
  job.ranks[0] = std::move(*rank);
  const Status linked = trace::link_job(job);
  require_readable(linked);
  return linked;
}
std::vector<Bytes> recording_seeds() {
  const std::vector<std::byte> file = trace::encoded(trace::two_ranks()[0]);
  return {Bytes(file.begin(), file.end() - trace::kChecksumBytes)};
}

}  // namespace

std::vector<FuzzTarget> recording_targets() {
  return {{"recording", run_recording, recording_seeds}};
}

}  // namespace verbena::fuzz
