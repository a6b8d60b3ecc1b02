#include "src/bench/request_response/request_work.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "src/bench/request_response/request_response_workload.h"

namespace verbena::bench {
namespace {

Point point_of(const RequestResponseSettings& settings, uint32_t pending) {
  Point point = request_response_workload().point();
  point.pending = pending;
  point.settings = settings;
  return point;
}

TEST(RequestWork, EveryByteOfAMessageIsFilledAndChecked) {
  const Point point = point_of({.request_bytes = 40, .response_bytes = 24}, 2);
  MessageWork work(point, /*verify=*/true, 5);
  std::vector<char> request(40);
  for (uint64_t sequence = 0; sequence < 3; ++sequence) {
    EXPECT_EQ(work.prepare(1, request.data()), 40u);
    EXPECT_TRUE(PayloadPattern(5, Direction::kRequest, 1, sequence).matches(request));
    std::vector<char> response(24);
    PayloadPattern(5, Direction::kResponse, 1, sequence).fill(response);
    if (sequence == 2) response[23] = static_cast<char>(~response[23]);
    EXPECT_EQ(work.check(1, response), sequence != 2);
  }
  EXPECT_FALSE(work.check(0, std::vector<char>(23)));
}

TEST(RequestWork, ReadsFetchShiftedPlacesInsideTheMemory) {
  const Point point = point_of({.protocol = Protocol::kRead, .response_bytes = 100}, 3);
  const ReadableMemory memory(point, 9);
  ASSERT_EQ(memory.bytes().size(), ReadableLayout(point).size_bytes());
  ReadWork work(point, /*verify=*/true, 9);
  std::set<uint64_t> offsets;
  for (uint32_t slot = 0; slot < 3; ++slot) {
    for (int i = 0; i < 20; ++i) {
      alignas(8) char request[64];
      ASSERT_EQ(work.prepare(slot, request), sizeof(ReadRequest));
      ReadRequest read;
      std::memcpy(&read, request, sizeof(read));
      EXPECT_EQ(read.bytes, 100u);
      ASSERT_LE(read.offset + read.bytes, memory.bytes().size());
      offsets.insert(read.offset);
      EXPECT_TRUE(work.check(slot, memory.bytes().subspan(read.offset, read.bytes)));
    }
  }
  EXPECT_EQ(offsets.size(), 3u * 8u);
  // What a stale response would bring.
  EXPECT_FALSE(work.check(0, memory.bytes().subspan(0, 100)) &&
               work.check(0, memory.bytes().subspan(0, 100)));
}

}  // namespace
}  // namespace verbena::bench
