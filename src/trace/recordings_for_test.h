// Recordings as files, without an MPI program. For tests only.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "src/trace/rank_decoder.h"
#include "src/trace/rank_encoder.h"
#include "src/trace/recording.h"

namespace verbena::trace {

// As the tracer writes it; not linked before.
inline std::vector<std::byte> encoded(const RankRecording& rank) {
  RankEncoder encoder(rank.rank, rank.size);
  for (const auto& members : rank.communicators) encoder.communicator(members);
  uint32_t latest = 0;
  std::vector<bool> receives = {false};
  for (const Event& event : rank.events) {
    if (event.operation != Operation::kWait) {
      encoder.event(event, rank.list(event));
      if (event.request != 0) {
        latest = event.request;
        receives.push_back(event.operation == Operation::kStartReceive);
      }
      continue;
    }
    std::vector<Completion> completions;
    for (const uint64_t request : rank.list(event)) {
      const bool receive = receives[request];
      completions.push_back(
          {.request = static_cast<uint32_t>(request),
           .flags = static_cast<uint8_t>(receive ? kCompletedReceive | kCompletedAsPosted : 0)});
    }
    encoder.wait(event.compute_ns, latest, completions);
  }
  encoder.end(rank.last_compute_ns, rank.elapsed_ns, rank.threads, rank.calls);
  return encoder.take();
}

inline void write_rank_file(const std::string& folder, uint32_t rank,
                            const std::vector<std::byte>& bytes) {
  std::ofstream file(folder + "/" + rank_file_name(rank), std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// Two ranks that use most of what there is; `bytes` of the messages between them.
inline std::vector<RankRecording> two_ranks(uint64_t bytes = 1000) {
  std::vector<RankRecording> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const uint32_t other = 1 - rank;
    RankBuilder builder(rank, 2);
    const uint32_t both = builder.communicator({1, 0});
    builder.compute(1500.5);
    const std::vector<uint32_t> requests = {builder.start_receive(other, 7, bytes, 1 << 20),
                                            builder.start_send(other, 7, bytes, 2 << 20)};
    builder.compute(250.5);
    builder.wait(requests);
    if (rank == 0) {
      builder.send(other, -3, 8, 3 << 20);
    } else {
      builder.receive(other, -3, 8, 1 << 20);
    }
    builder.collective(Operation::kAllreduce, 64, 1 << 20, 0, both);
    builder.collective(Operation::kBroadcast, 5000, 1 << 20, 1);
    // To itself, and to the other twice as much; then what it gets.
    const std::vector<uint64_t> exchanged = {16u - 8 * (1 - rank), 16u - 8 * rank,
                                             16u - 8 * (1 - rank), 16u - 8 * rank};
    builder.collective_v(Operation::kAlltoall, exchanged, 1 << 20);
    if (rank == 1) {
      std::vector<uint64_t> list = {24, 24};
      builder.collective_v(Operation::kGather, list, 1 << 20, 1);
    } else {
      builder.collective(Operation::kGather, 24, 1 << 20, 1);
    }
    builder.collective(Operation::kBarrier, 0, 0);
    ranks.push_back(builder.take());
    ranks.back().elapsed_ns = 12'345;
    ranks.back().calls = {{"MPI_Send", 1, 100, true}, {"MPI_Put", 2, 50, false}};
  }
  return ranks;
}

inline RecordedJob job_of(std::vector<RankRecording> ranks) {
  RecordedJob job;
  job.name = "a recording";
  job.ranks = std::move(ranks);
  return job;
}

}  // namespace verbena::trace
