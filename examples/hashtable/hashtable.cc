// A hashtable in remote memory: crawlers share out pages by it, so that each page is fetched once.
// The table is in the memory of a back-end that runs no code meanwhile.
//
//   cmake -B build && cmake --build build && build/hashtable
//
// Crawlers and back-end are threads here, so that one command shows it all; with a process or a
// host for each, nothing in them would change but the addresses and devices.
#include "verbena/apps/hashtable.h"

#include <cstdint>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"

namespace {

using verbena::Hashtable;
using verbena::HashtableOutcome;
using verbena::HashtableReply;
using verbena::Status;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kCrawlers = 3;
constexpr uint32_t kPages = 5'000;
constexpr verbena::HashtableFormat kFormat = {
    .entries = kPages, .max_key_bytes = 40, .max_value_bytes = 24};

std::string page(uint32_t number) { return "https://example.org/" + std::to_string(number); }

// Each crawler meets all pages, and takes those that nobody else has taken.
Status crawl(uint32_t crawler, uint16_t port, const verbena::JobSecret& secret, uint32_t* fetched) {
  VERBENA_ASSIGN_OR_RETURN(
      auto control, verbena::ControlConnection::connect("127.0.0.1", port, secret, kTenSecondsNs));
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           verbena::open_region(device, domain, control,
                                                verbena::hashtable_region_options(kFormat, 16)));
  VERBENA_ASSIGN_OR_RETURN(auto table, Hashtable::open(*region));
  for (uint32_t i = 0; i < kPages; ++i) {
    const std::string url = page((i + crawler * 1000) % kPages);
    const HashtableReply reply = table->insert(url, "crawler " + std::to_string(crawler));
    if (reply.outcome == HashtableOutcome::kExists) continue;  // somebody else has taken it
    if (reply.outcome != HashtableOutcome::kDone) return table->error();
    ++*fetched;  // here it would be fetched
    if (table->update(url, "done").outcome != HashtableOutcome::kDone) return table->error();
  }
  // Many at once: which pages are done? Those that another one is about to fetch may not be.
  uint32_t done = 0;
  const auto take = [&](const HashtableReply& reply) { done += reply.value == "done" ? 1 : 0; };
  for (uint32_t i = 0; i < kPages && table->status().ok();) {
    if (table->post_search(page(i), /*token=*/i) == verbena::PostResult::kPosted) {
      ++i;
    } else {
      table->poll(take);
    }
  }
  while (table->pending() > 0 && table->status().ok()) table->poll(take);
  if (done < *fetched) std::cout << "crawler " << crawler << " misses its own pages\n";
  return table->close();
}

Status run() {
  const auto secret = verbena::JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(auto listener, verbena::ControlListener::listen("127.0.0.1", 0, secret));
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const uint64_t size_bytes, verbena::hashtable_bytes(kFormat));
  std::vector<verbena::ControlConnection> controls;  // outlive the region
  controls.reserve(kCrawlers);
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           verbena::expose_region(device, domain, {.size_bytes = size_bytes}));
  VERBENA_RETURN_IF_ERROR(
      verbena::format_hashtable({region->data(), region->size_bytes()}, kFormat));

  std::vector<Status> ends(kCrawlers);
  std::vector<uint32_t> fetched(kCrawlers);
  std::vector<std::jthread> crawlers;
  for (uint32_t i = 0; i < kCrawlers; ++i) {
    crawlers.emplace_back([&, i] { ends[i] = crawl(i, listener.port(), secret, &fetched[i]); });
  }
  for (uint32_t i = 0; i < kCrawlers; ++i) {
    VERBENA_ASSIGN_OR_RETURN(auto control, listener.accept(kTenSecondsNs));
    controls.push_back(std::move(control));
    VERBENA_RETURN_IF_ERROR(region->accept(controls.back()));
  }
  // From here on, only the crawlers' threads run.
  for (auto& crawler : crawlers) crawler.join();
  uint32_t all = 0;
  for (uint32_t i = 0; i < kCrawlers; ++i) {
    VERBENA_RETURN_IF_ERROR(ends[i]);
    all += fetched[i];
  }
  std::cout << all << " pages fetched, of " << kPages << '\n';
  return Status::ok_status();
}

}  // namespace

int main() {
  const Status status = run();
  if (!status.ok()) std::cerr << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
