// After connect: no allocation, no lock and no system call for an operation on remote memory, and
// nothing at all at the back-end. Counted, not inspected (data_path_counts.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "tests/data_path_counts.h"
#include "tests/remote_support.h"
#include "verbena/remote_consolidation.h"
#include "verbena/remote_sockets.h"

namespace verbena::remote_test {
namespace {

using test::Counted;
using test::Counts;

constexpr uint64_t kWarmUp = 500;
constexpr uint64_t kCountedOperations = 5000;

// All kinds of operations, in turn: at once, and one at a time if no other thread is needed for
// them.
void operate(RemoteRegion& region, const MemoryRegion& memory, uint64_t operations,
             Counted& counted, bool one_at_a_time = true) {
  const LocalSlice pieces[] = {{&memory, 0, 40}, {&memory, 100, 8}, {&memory, 4000, 16}};
  const LocalSlice slice{.memory = &memory, .offset_bytes = 64, .size_bytes = 4096};
  char bytes[64] = {};
  uint64_t posted = 0;
  uint64_t done = 0;
  const auto post = [&](uint64_t number) {
    const VectorMethod method = all_vector_methods()[number % 3];
    switch (number % 8) {
      case 0:
        return region.post_write(kFirstWord, number, number);
      case 1:
        return region.post_read(kFirstWord, number, Order::kAfterReads);
      case 2:
        return region.post_fetch_and_add(kCounter, 1, number);
      case 3:
        return region.post_compare_and_swap(kCounter, number, number, number);
      case 4:
        return region.post_write(4096, slice, number);
      case 5:
        return region.post_writev(256, pieces, number, method);
      case 6:
        return region.post_readv(256, pieces, number, method);
      default:
        return region.post_read(4096, slice, number);
    }
  };
  while (done < operations && region.status().ok()) {
    while (posted < operations && post(posted) == PostResult::kPosted) ++posted;
    const uint32_t found = region.poll([](const RemoteCompletion&) {});
    done += found;
    counted.polled(found);
    if (one_at_a_time && done % 16 == 0) {
      static_cast<void>(region.write(kFirstWord, done));
      static_cast<void>(region.read(128, std::span<char>(bytes)));
      static_cast<void>(region.fetch_and_add(kCounter, 1));
      static_cast<void>(region.readv(256, pieces));
    }
  }
}

// Small writes into blocks that are kept, all over the region: some are written, some loaded.
void consolidate(ConsolidatedRegion& region, uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) {
    const uint64_t number = i * 7919 % kWords;
    static_cast<void>(region.write(kFirstWord + number, i));
    if (i % 4 == 0) static_cast<void>(region.read(kFirstWord + (number ^ 1)));
    if (i % 16 == 0) static_cast<void>(region.poll());
  }
  static_cast<void>(region.flush());
}

Status run_consolidating(bool exclusive, uint16_t port, const JobSecret& secret, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           open_region(device, domain, control, {.value_bytes = 1024}));
  VERBENA_ASSIGN_OR_RETURN(auto hot, ConsolidatedRegion::create(*region, {.exclusive = exclusive}));
  Counted counted;
  consolidate(*hot, kWarmUp);
  counted.begin();
  consolidate(*hot, kCountedOperations);
  counts = counted.end(kCountedOperations);
  return region->status();
}

Status run_front_end(const RemoteRegionOptions& options, uint16_t port, const JobSecret& secret,
                     Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  std::vector<char> bytes(8192);
  VERBENA_ASSIGN_OR_RETURN(
      const MemoryRegion memory,
      MemoryRegion::create(domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE));
  VERBENA_ASSIGN_OR_RETURN(auto region, open_region(device, domain, control, options));
  Counted counted;
  operate(*region, memory, kWarmUp, counted);
  counted.begin();
  operate(*region, memory, kCountedOperations, counted);
  counts = counted.end(kCountedOperations);
  return region->status();
}

Status run_back_end(ControlListener& listener) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           expose_region(device, domain, {.size_bytes = kRegionBytes}));
  VERBENA_RETURN_IF_ERROR(region->accept(control));
  Waiter waiter;
  while (region->remove_ended() > 0) waiter.idle();
  return Status::ok_status();
}

// The requesting thread; all that it asks for lies on the other socket.
Status run_proxied_front_end(uint16_t port, const JobSecret& secret, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  std::vector<char> bytes(8192);
  VERBENA_ASSIGN_OR_RETURN(
      const MemoryRegion memory,
      MemoryRegion::create(domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE));
  const SocketDevice sockets[] = {{&device, &domain}, {&device, &domain}};
  VERBENA_ASSIGN_OR_RETURN(auto connections, connect_sockets(sockets, [&] {
                             return ControlConnection::connect("127.0.0.1", port, secret,
                                                               kTimeoutNs);
                           }));
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           connections->open_region(1, {.region = {.max_entries = 3}}));
  Counted counted;
  operate(*region, memory, kWarmUp, counted, /*one_at_a_time=*/false);
  counted.begin();
  operate(*region, memory, kCountedOperations, counted, /*one_at_a_time=*/false);
  counts = counted.end(kCountedOperations);
  return region->status();
}

Status run_back_end_on_sockets(ControlListener& listener) {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  const SocketDevice sockets[] = {{&device, &domain}, {&device, &domain}};
  std::vector<ControlConnection> controls;
  VERBENA_ASSIGN_OR_RETURN(auto region, expose_sockets(sockets, {.size_bytes = kRegionBytes}));
  controls.reserve(3);  // two proxies, and the thread's own
  for (int i = 0; i < 3; ++i) {
    VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
    controls.push_back(std::move(control));
    VERBENA_RETURN_IF_ERROR(region->accept(controls.back()));
  }
  Waiter waiter;
  while (region->part(0).remove_ended() + region->part(1).remove_ended() > 0) waiter.idle();
  region.reset();  // before the connections
  return Status::ok_status();
}

void run(const std::function<Status(uint16_t port, const JobSecret&, Counts&)>& front_end,
         const std::function<Status(ControlListener&)>& back_end = run_back_end) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const bool traced = test::run_counted(
      {{"back-end", false, [&](Counts&) { return back_end(*listener); }},
       {"front-end", true,
        [&](Counts& counts) { return front_end(listener->port(), secret, counts); }}},
      kCountedOperations);
  if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
}

TEST(RemoteDataPathTest, NoAllocationNoLockNoSystemCall) {
  for (const RemoteRegionOptions& options :
       {RemoteRegionOptions{.max_entries = 3}, RemoteRegionOptions{.pending = 1, .max_entries = 4},
        RemoteRegionOptions{
            .pending = 32, .signal_interval = 8, .post_batch = 4, .max_entries = 3}}) {
    SCOPED_TRACE(options.pending);
    run([&](uint16_t port, const JobSecret& secret, Counts& counts) {
      return run_front_end(options, port, secret, counts);
    });
  }
}

TEST(RemoteDataPathTest, NoneWithConsolidation) {
  for (const bool exclusive : {false, true}) {
    SCOPED_TRACE(exclusive);
    run([&](uint16_t port, const JobSecret& secret, Counts& counts) {
      return run_consolidating(exclusive, port, secret, counts);
    });
  }
}

TEST(RemoteDataPathTest, NoneInHandingOverToAProxy) {
  run(run_proxied_front_end, run_back_end_on_sockets);
}

}  // namespace
}  // namespace verbena::remote_test
