// After connect: no allocation, no lock and no system call for an operation on a hashtable, and
// nothing at all at the back-end. Counted, not inspected (data_path_counts.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <tuple>

#include "tests/data_path_counts.h"
#include "tests/rpc_support.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable_test {
namespace {

using rpc_test::kTimeoutNs;
using rpc_test::test_device;
using test::Counted;
using test::Counts;

constexpr uint64_t kWarmUp = 2000;
constexpr uint64_t kCountedOperations = 20'000;

HashtableFormat format_of(uint32_t hot_blocks) {
  return {.entries = 512, .max_front_ends = 1, .hot_blocks = hot_blocks};
}

// All kinds of operations on random keys, so that entries come and go and nodes with them.
void operate(Hashtable& table, uint64_t operations, Random& random, Counted& counted) {
  char value[64] = "value";
  uint64_t posted = 0;
  uint64_t done = 0;
  const auto post = [&] {
    // Phases of many insertions, then of many removals, with all else between.
    const uint64_t number = random.below(512);
    const std::string_view key(reinterpret_cast<const char*>(&number), sizeof(number));
    const std::string_view text(value, random.below(64));
    switch (random.below(8)) {
      case 0:
      case 1:
        return table.post_search(key, posted);
      case 2:
      case 3:
        return table.post_update(key, text, posted);
      default:
        return posted / 1000 % 2 == 0 ? table.post_insert(key, text, posted)
                                      : table.post_remove(key, posted);
    }
  };
  while (done < operations && table.status().ok()) {
    while (posted < operations && post() == PostResult::kPosted) ++posted;
    const uint32_t found = table.poll([](const HashtableReply&) {});
    done += found;
    counted.polled(found);
  }
}

Status run_front_end(uint32_t pending, uint32_t hot_blocks,
                     HashtableAcknowledgement acknowledgement, uint16_t port,
                     const JobSecret& secret, Counts& counts) {
  const HashtableOptions options = {
      .hot_after = 4, .hot_patience = 4, .acknowledgement = acknowledgement};
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(
      auto region, open_region(device, domain, control,
                               hashtable_region_options(format_of(hot_blocks), pending, options)));
  VERBENA_ASSIGN_OR_RETURN(auto table, Hashtable::open(*region, options));
  Random random(run_seed());
  Counted counted;
  operate(*table, kWarmUp, random, counted);
  counted.begin();
  const HashtableStatistics before = table->statistics();
  operate(*table, kCountedOperations, random, counted);
  counts = counted.end(kCountedOperations);
  // Nodes have come and gone in what was counted.
  if (table->statistics().refills < 3 || table->statistics().spills < 3) {
    return {StatusCode::kInternal, "the test exchanges no nodes"};
  }
  // So have keys, from and to the hot area.
  const HashtableStatistics& after = table->statistics();
  if (hot_blocks > 0 && (after.hot_demotions - before.hot_demotions < 10 ||
                         after.hot_flushes - before.hot_flushes < 100)) {
    return {StatusCode::kInternal, "the test does not use the hot area"};
  }
  if (acknowledgement == HashtableAcknowledgement::kBuffered &&
      after.hot_kept - before.hot_kept < 100) {
    return {StatusCode::kInternal, "the test answers nothing before it is published"};
  }
  return table->status();
}

Status run_back_end(const HashtableFormat& format, ControlListener& listener) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const uint64_t size_bytes, hashtable_bytes(format));
  VERBENA_ASSIGN_OR_RETURN(auto region, expose_region(device, domain, {.size_bytes = size_bytes}));
  VERBENA_RETURN_IF_ERROR(format_hashtable({region->data(), region->size_bytes()}, format));
  VERBENA_RETURN_IF_ERROR(region->accept(control));
  Waiter waiter;
  while (region->remove_ended() > 0) waiter.idle();
  return Status::ok_status();
}

TEST(HashtableDataPathTest, NoAllocationNoLockNoSystemCall) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  using enum HashtableAcknowledgement;
  for (const auto& [pending, hot_blocks, acknowledgement] :
       {std::tuple{1u, 0u, kPublished}, std::tuple{32u, 0u, kPublished},
        std::tuple{1u, 8u, kPublished}, std::tuple{32u, 8u, kPublished},
        std::tuple{1u, 8u, kBuffered}, std::tuple{32u, 8u, kBuffered}}) {
    SCOPED_TRACE(testing::Message() << pending << " pending, " << hot_blocks << " hot blocks"
                                    << (acknowledgement == kBuffered ? ", buffered" : ""));
    const JobSecret secret = JobSecret::random();
    auto listener = ControlListener::listen("127.0.0.1", 0, secret);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    const auto back_end = [&, hot = hot_blocks](Counts&) {
      return run_back_end(format_of(hot), *listener);
    };
    const auto front_end = [&, most = pending, hot = hot_blocks,
                            answers = acknowledgement](Counts& counts) {
      return run_front_end(most, hot, answers, listener->port(), secret, counts);
    };
    const bool traced = test::run_counted(
        {{"back-end", false, back_end}, {"front-end", true, front_end}}, kCountedOperations);
    if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
  }
}

}  // namespace
}  // namespace verbena::hashtable_test
