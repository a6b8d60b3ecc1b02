// Vector IO: every way moves the right bytes, and the cheapest one is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/local_vector_file.h"
#include "src/remote/region_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "src/remote/vector_cost.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;

// Pieces of registered memory with bytes of their own, and what they are together.
class Pieces {
 public:
  Pieces(const ProtectionDomain& domain, Random& random, uint32_t entries, uint32_t most_bytes)
      : bytes_((entries + 1) * (most_bytes + 8)),
        memory_(must(
            MemoryRegion::create(domain, bytes_.data(), bytes_.size(), IBV_ACCESS_LOCAL_WRITE))) {
    uint64_t offset = 0;
    for (uint32_t i = 0; i < entries; ++i) {
      offset += random.below(8);
      const auto size = static_cast<uint32_t>(random.below(most_bytes + 1));
      slices_.push_back({&memory_, offset, size});
      offset += size;
    }
    // Not in the order in which they lie.
    for (size_t i = slices_.size(); i > 1; --i) std::swap(slices_[i - 1], slices_[random.below(i)]);
  }

  void fill(Random& random) {
    for (char& byte : bytes_) byte = static_cast<char>(random.next());
  }
  std::vector<char> together() const {
    std::vector<char> all;
    for (const LocalSlice& slice : slices_) {
      const char* begin = bytes_.data() + slice.offset_bytes;
      all.insert(all.end(), begin, begin + slice.size_bytes);
    }
    return all;
  }
  const std::vector<LocalSlice>& slices() const { return slices_; }

 private:
  std::vector<char> bytes_;
  MemoryRegion memory_;
  std::vector<LocalSlice> slices_;
};

std::vector<VectorMethod> methods_and_automatic() {
  std::vector<VectorMethod> methods(all_vector_methods().begin(), all_vector_methods().end());
  methods.push_back(VectorMethod::kAutomatic);
  return methods;
}

// With `post`, by operations whose completions are taken; else one at a time.
void move_vectors(RegionForTest& region, RegionForTest::Opened& front_end, Random& random,
                  VectorMethod method, bool post) {
  const auto entries = static_cast<uint32_t>(random.below(13));
  const auto most_bytes = static_cast<uint32_t>(1 + random.below(1000));
  Random same = random;
  Pieces from(region.node().domain, random, entries, most_bytes);
  Pieces to(region.node().domain, same, entries, most_bytes);
  from.fill(random);
  const std::vector<char> expected = from.together();
  const uint64_t offset = random.below(region->size_bytes() - expected.size());
  std::memset(region->data(), 0, region->size_bytes());
  if (post) {
    ASSERT_EQ(front_end->post_writev(offset, from.slices(), 1, method), PostResult::kPosted);
    ASSERT_EQ(front_end->post_readv(offset, to.slices(), 2, method), PostResult::kPosted);
    uint64_t taken = 0;
    Waiter waiter;
    while (taken < 2) {
      front_end->poll([&](const RemoteCompletion& done) { EXPECT_EQ(done.token, ++taken); });
      ASSERT_TRUE(front_end->status().ok()) << front_end->status().message();
      waiter.idle();
    }
  } else {
    ASSERT_TRUE(front_end->writev(offset, from.slices(), method).ok());
    ASSERT_TRUE(front_end->readv(offset, to.slices(), method).ok());
  }
  ASSERT_TRUE(std::equal(expected.begin(), expected.end(), region->data() + offset));
  char* const end = region->data() + region->size_bytes();
  const auto is_zero = [](char byte) { return byte == 0; };
  ASSERT_TRUE(std::all_of(region->data() + 0, region->data() + offset, is_zero));
  ASSERT_TRUE(std::all_of(region->data() + offset + expected.size(), end, is_zero));
  ASSERT_EQ(to.together(), expected);
}

TEST(RemoteVectorTest, EveryWayMovesTheSameBytes) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  RegionForTest region({.size_bytes = 32 << 10});
  for (const uint32_t batch : {1u, 3u}) {
    auto front_end = region.open({.pending = 4,
                                  .value_bytes = 16 << 10,
                                  .signal_interval = batch,
                                  .post_batch = batch,
                                  .max_entries = 12});
    ASSERT_TRUE(front_end.region.ok()) << front_end.region.status().message();
    for (int round = 0; round < 100; ++round) {
      for (const VectorMethod method : methods_and_automatic()) {
        SCOPED_TRACE(vector_method_name(method));
        move_vectors(region, front_end, random, method, round % 2 == 0);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
    EXPECT_EQ(front_end->outstanding(), 0u);
  }
}

TEST(RemoteVectorTest, WorkRequestsAndDoorbellsAreThoseOfTheMethod) {
  RegionForTest region({.size_bytes = 4096});
  auto front_end = region.open({.pending = 2, .value_bytes = 4096, .max_entries = 8});
  ASSERT_TRUE(front_end.region.ok());
  std::vector<char> bytes(800);
  const MemoryRegion memory = must(MemoryRegion::create(region.node().domain, bytes.data(),
                                                        bytes.size(), IBV_ACCESS_LOCAL_WRITE));
  std::vector<LocalSlice> slices;
  for (uint64_t i = 0; i < 8; ++i) slices.push_back({&memory, i * 100, 100});
  for (const VectorMethod method : all_vector_methods()) {
    const RemoteStatistics before = front_end->statistics();
    ASSERT_TRUE(front_end->writev(0, slices, method).ok());
    const RemoteStatistics after = front_end->statistics();
    EXPECT_EQ(after.writes - before.writes, method == VectorMethod::kDoorbell ? 8u : 1u);
    EXPECT_EQ(after.written_bytes - before.written_bytes, 800u);
    EXPECT_EQ(after.doorbells - before.doorbells, 1u);
  }
}

TEST(RemoteVectorTest, WhatCannotBeIsRefusedWithItsReason) {
  RegionForTest region({.size_bytes = 4096});
  auto front_end =
      region.open({.pending = 2, .value_bytes = 64, .copy_bytes = 64, .max_entries = 64});
  ASSERT_TRUE(front_end.region.ok());
  std::vector<char> bytes(100);
  const MemoryRegion memory = must(MemoryRegion::create(region.node().domain, bytes.data(),
                                                        bytes.size(), IBV_ACCESS_LOCAL_WRITE));
  const auto pieces = [&](size_t count, uint32_t size_bytes) {
    return std::vector<LocalSlice>(count, LocalSlice{&memory, 0, size_bytes});
  };
  const auto expect = [&](PostResult posted, const Status& waited, const char* reason) {
    EXPECT_EQ(posted, PostResult::kFailed);
    EXPECT_THAT(front_end->error().message(), HasSubstr(reason));
    EXPECT_EQ(waited.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(waited.message(), HasSubstr(reason));
  };
  const auto write = [&](const std::vector<LocalSlice>& slices, VectorMethod method,
                         const char* reason) {
    const Status waited = front_end->writev(0, slices, method);
    expect(front_end->post_writev(0, slices, 1, method), waited, reason);
  };
  write(pieces(65, 1), VectorMethod::kAutomatic, "a vector has 65 pieces, max_entries is 64");
  write(pieces(13, 5), VectorMethod::kSp, "65 bytes does not fit the buffer of 64 bytes");
  write(pieces(64, 1), VectorMethod::kSgl, "64 pieces are more than the 16 entries that soft0");
  write(pieces(2, 101), VectorMethod::kSgl, "not all inside of its registered memory");
  write(pieces(60, 100), VectorMethod::kDoorbell, "6000 bytes at offset 0 are not all inside");
  EXPECT_TRUE(front_end->status().ok());
  EXPECT_TRUE(front_end->writev(0, pieces(40, 100)).ok()) << "automatic finds a way";
}

// Where the estimates say that one way is clearly cheaper, it is in the simulation.
TEST(RemoteVectorTest, EstimatesOrderTheWaysAsTheSimulationDoes) {
  const sim::Profile& profile = sim::test_profile();
  struct Case {
    uint32_t entries;
    uint32_t entry_bytes;
    bool reads;
    uint32_t pending;
  };
  uint32_t compared = 0;
  for (const Case& c : {Case{4, 32, false, 16}, Case{16, 32, false, 16}, Case{4, 256, false, 16},
                        Case{16, 256, false, 16}, Case{16, 32, true, 16}, Case{16, 1024, true, 8},
                        Case{16, 2048, false, 4}, Case{4, 64, false, 1}, Case{16, 64, true, 1}}) {
    RemoteRegionOptions options{.pending = c.pending,
                                .value_bytes = 64 << 10,
                                .copy_bytes = 64 << 10,
                                .inline_bytes = 0,
                                .max_entries = 16};
    std::map<VectorMethod, double> measured;
    std::vector<VectorEstimate> estimates;
    VectorMethod automatic = VectorMethod::kAutomatic;
    for (const VectorMethod method : all_vector_methods()) {
      SimulatedRegions regions(1, 1, 1 << 20, {});
      const uint32_t operations = 400;
      ASSERT_TRUE(regions.run(options, [&](uint32_t, RemoteRegion& region) {
        std::vector<char> bytes(c.entries * c.entry_bytes);
        const MemoryRegion memory = must(MemoryRegion::create(
            regions.cluster()[1].domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE));
        std::vector<LocalSlice> slices;
        for (uint64_t i = 0; i < c.entries; ++i) {
          slices.push_back({&memory, i * c.entry_bytes, c.entry_bytes});
        }
        estimates = region.vector_estimates(c.reads, c.entries, c.entry_bytes);
        uint32_t posted = 0;
        uint32_t done = 0;
        uint64_t begin_ns = 0;
        Waiter waiter;
        while (done < operations) {
          while (posted < operations &&
                 (c.reads ? region.post_readv(0, slices, 1, method)
                          : region.post_writev(0, slices, 1, method)) == PostResult::kPosted) {
            ++posted;
          }
          const uint32_t found = region.poll([](const RemoteCompletion&) {});
          if (done < operations / 4 && done + found >= operations / 4) begin_ns = now_ns();
          done += found;
          if (found == 0) waiter.idle();
        }
        measured[method] = static_cast<double>(now_ns() - begin_ns);
      }));
      ASSERT_TRUE(regions.status(0).ok()) << regions.status(0).message();
    }
    automatic = estimates.front().method;
    SCOPED_TRACE(testing::Message() << profile.name << ": " << c.entries << " x " << c.entry_bytes
                                    << (c.reads ? " read" : " written") << ", pending " << c.pending
                                    << "; automatic " << vector_method_name(automatic));
    for (const VectorEstimate& a : estimates) {
      for (const VectorEstimate& b : estimates) {
        if (a.interval_ns * 1.25 > b.interval_ns) continue;
        ++compared;
        EXPECT_LT(measured[a.method], measured[b.method])
            << a.why << ", " << measured[a.method] << " ns; " << b.why << ", " << measured[b.method]
            << " ns";
      }
    }
    // What automatic takes is never far from the best.
    for (const auto& [method, ns] : measured) EXPECT_LT(measured[automatic], ns * 1.25);
  }
  EXPECT_GT(compared, 10u);
}

TEST(RemoteVectorTest, TheChoiceIsTheFirstEstimate) {
  for (const char* name : {"soft0", "sim:connectx3-fdr"}) {
    DeviceInfo info = must(Device::open("soft0")).info();
    if (std::string(name) != info.name) {
      info.name = name;
      info.kind = DeviceKind::kSimulated;
    }
    const VectorWorkload common{.pending = 8, .staging_bytes = 4096};
    const VectorChoice choice(info, common);
    for (const bool reads : {false, true}) {
      for (uint32_t entries = 2; entries <= 16; entries += 3) {
        for (uint32_t bytes = 1; bytes < 100'000; bytes = bytes * 3 + 1) {
          VectorWorkload workload = common;
          workload.reads = reads;
          workload.entries = entries;
          workload.entry_bytes = bytes;
          const auto estimates =
              estimate_vector_methods(info, workload, VectorChoice::rounded(workload));
          EXPECT_EQ(choice.method(reads, entries, uint64_t{entries} * bytes, common.staging_bytes),
                    estimates.front().method);
          EXPECT_TRUE(estimates.front().usable);
          EXPECT_THAT(estimates.front().why,
                      HasSubstr(vector_method_name(estimates.front().method)));
        }
      }
    }
  }
}

// Sizes are rounded for their costs, not for what fits: 33 pieces are no 64.
TEST(RemoteVectorTest, WhatFitsIsDecidedByTheSizesThemselves) {
  const DeviceInfo info = must(Device::open("soft0")).info();
  const VectorWorkload common{.pending = 8};
  const VectorChoice choice(info, common);
  ASSERT_EQ(choice.method(false, 33, 33 * 8, ~0u), VectorMethod::kSp);
  EXPECT_EQ(choice.method(false, 33, 33 * 8, 33 * 8), VectorMethod::kSp);
  EXPECT_EQ(choice.method(false, 33, 33 * 8, 33 * 8 - 1), VectorMethod::kDoorbell);
  ASSERT_EQ(choice.method(false, info.max_sges, info.max_sges * 2048, 0), VectorMethod::kSgl);
  EXPECT_EQ(choice.method(false, info.max_sges + 1, 2048 * (info.max_sges + 1), 0),
            VectorMethod::kDoorbell);
}

// Posted operations are copied through values, which copy_bytes does not bound.
TEST(RemoteVectorTest, TheBufferOfLoneOperationsDoesNotBoundPostedOnes) {
  SimulatedRegions regions(1, 1, 1 << 20, {});
  ASSERT_TRUE(regions.run(
      {.pending = 8, .value_bytes = 4096, .copy_bytes = 64, .inline_bytes = 0, .max_entries = 33},
      [&](uint32_t, RemoteRegion& region) {
        for (const VectorEstimate& estimate : region.vector_estimates(false, 33, 64)) {
          if (estimate.method == VectorMethod::kSp) {
            EXPECT_TRUE(estimate.usable) << estimate.why;
          }
        }
      }));
}

TEST(RemoteVectorTest, TheChoiceDependsOnSizesAndThreads) {
  DeviceInfo device = must(Device::open("soft0")).info();
  const auto best = [&](const VectorWorkload& workload) {
    return estimate_vector_methods(device, workload).front();
  };
  // On soft0 a second copy pays only for the smallest pieces.
  EXPECT_EQ(best({.entries = 16, .entry_bytes = 8}).method, VectorMethod::kSp);
  EXPECT_EQ(best({.entries = 16, .entry_bytes = 2048}).method, VectorMethod::kSgl);
  // More pieces than a gather list takes, and than fit the buffer.
  EXPECT_EQ(best({.entries = 64, .entry_bytes = 2048, .staging_bytes = 4096}).method,
            VectorMethod::kDoorbell);
  const auto estimates =
      estimate_vector_methods(device, {.entries = 64, .entry_bytes = 64, .staging_bytes = 64});
  EXPECT_FALSE(estimates[1].usable);
  EXPECT_FALSE(estimates[2].usable);
  for (const VectorEstimate& estimate : estimates) {
    EXPECT_THAT(estimate.why, HasSubstr(estimate.method == VectorMethod::kSp ? "raise value_bytes"
                                        : estimate.method == VectorMethod::kSgl
                                            ? "more than the 16 entries"
                                            : "ns from one operation of 64 x 64 bytes"));
  }
  // Threads share the device, not their own time.
  const VectorWorkload one{.entries = 4, .entry_bytes = 512, .inline_bytes = 0};
  VectorWorkload eight = one;
  eight.threads = 8;
  device.kind = DeviceKind::kHardware;
  EXPECT_GT(best(eight).interval_ns, best(one).interval_ns);
  EXPECT_EQ(best(eight).thread_ns, best(one).thread_ns);
}

TEST(LocalVectorFileTest, MovesAllPiecesOrSaysWhyNot) {
  LocalVectorFile file = must(LocalVectorFile::create(1000));
  std::vector<char> from(300);
  std::iota(from.begin(), from.end(), '\0');
  const iovec out[] = {{from.data() + 100, 200}, {from.data(), 100}};
  ASSERT_TRUE(file.writev(700, out).ok());
  std::vector<char> to(300);
  const iovec in[] = {{to.data() + 100, 200}, {to.data(), 50}, {to.data() + 50, 50}};
  ASSERT_TRUE(file.readv(700, in).ok());
  EXPECT_EQ(to, from);
  const Status outside = file.writev(701, out);
  EXPECT_EQ(outside.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(outside.message(), HasSubstr("300 bytes at offset 701"));
  const std::vector<iovec> many(2000, iovec{to.data(), 0});
  EXPECT_THAT(file.readv(0, many).message(), HasSubstr("2000 pieces"));
}

}  // namespace
}  // namespace verbena::remote
