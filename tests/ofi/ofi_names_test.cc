// Endpoints by node and service, as programs without another way of telling addresses find them.
#include <gtest/gtest.h>
#include <rdma/fi_cm.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/ofi/provider_for_test.h"
#include "verbena/message.h"

namespace verbena::ofi_test {
namespace {

MessengerAddress address_in(const void* bytes) {
  MessengerAddress address;
  memcpy(&address, bytes, sizeof(address));
  return address;
}

MessengerAddress name_of(const Owned<fid_ep>& endpoint) {
  char name[64];
  size_t size_bytes = sizeof(name);
  EXPECT_EQ(fi_getname(&endpoint->fid, name, &size_bytes), 0);
  EXPECT_EQ(size_bytes, sizeof(MessengerAddress));
  return address_in(name);
}

class NamesTest : public ProviderTest {
 protected:
  // What fi_getinfo finds for this test's own hints; null: nothing.
  Info find(const char* node, const std::string& service, uint64_t flags) const {
    const Info hints(fi_dupinfo(info_.get()));
    free(hints->src_addr);
    hints->src_addr = nullptr;
    hints->src_addrlen = 0;
    fi_info* found = nullptr;
    const int result =
        fi_getinfo(FI_VERSION(1, 17), node, service.empty() ? nullptr : service.data(), flags,
                   hints.get(), &found);
    EXPECT_TRUE(result == 0 || result == -FI_ENODATA) << result;
    return Info(found);
  }

  Owned<fid_ep> open(fi_info* info) const {
    fid_ep* endpoint = nullptr;
    EXPECT_EQ(fi_endpoint(domain_.get(), info, &endpoint, nullptr), 0);
    return Owned<fid_ep>(endpoint);
  }

  // A place is asked for a few seconds, which a busy machine may need for a handshake.
  template <typename Insert>
  static void must_insert(Insert&& insert) {
    constexpr int kMostTries = 40;
    int inserted = 0;
    for (int tries = 0; tries < kMostTries && inserted == 0; ++tries) inserted = insert();
    ASSERT_EQ(inserted, 1);
  }

  void expect_message(fi_addr_t from_a) {
    char got[8] = {};
    receive(b_, got, sizeof(got), 1);
    must_post([&] { return fi_tinject(a_.endpoint.get(), "by name", 8, from_a, 1); });
    EXPECT_EQ(next(b_).source, b_.other);
    EXPECT_STREQ(got, "by name");
  }
};

TEST_F(NamesTest, AMessageReachesWhoListensAtAService) {
  const std::string service = std::to_string(port_of(name_of(b_.endpoint)));
  const Info info = find("127.0.0.1", service, 0);
  ASSERT_NE(info, nullptr);
  ASSERT_EQ(info->dest_addrlen, sizeof(MessengerAddress));
  fi_addr_t number = FI_ADDR_NOTAVAIL;
  must_insert(
      [&] { return fi_av_insert(a_.vector.get(), info->dest_addr, 1, &number, 0, nullptr); });
  // What the vector has is the address, not the place.
  MessengerAddress kept;
  size_t size_bytes = sizeof(kept);
  ASSERT_EQ(fi_av_lookup(a_.vector.get(), number, &kept, &size_bytes), 0);
  EXPECT_EQ(kept, name_of(b_.endpoint));
  expect_message(number);
  must_insert([&] {
    return fi_av_insertsvc(a_.vector.get(), "127.0.0.1", service.data(), &number, 0, nullptr);
  });
  expect_message(number);
}

// A name may stand for addresses of both families, and that of this system for one of the loopback
// that no endpoint has.
TEST_F(NamesTest, AHostHasEndpointsByItsName) {
  const std::string service = std::to_string(port_of(name_of(b_.endpoint)));
  const Info info = find("localhost", service, 0);
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(host_of(address_in(info->dest_addr)), "127.0.0.1");
  fi_addr_t number = FI_ADDR_NOTAVAIL;
  must_insert(
      [&] { return fi_av_insert(a_.vector.get(), info->dest_addr, 1, &number, 0, nullptr); });
  expect_message(number);
}

TEST_F(NamesTest, AnEndpointListensAtItsService) {
  // A port that was free a moment ago may be another program's by now: then the next one.
  bool listens = false;
  for (int attempt = 0; attempt < 16 && !listens; ++attempt) {
    const uint16_t port = port_of(name_of(open(info_.get())));
    const Info info = find("127.0.0.1", std::to_string(port), FI_SOURCE);
    ASSERT_NE(info, nullptr);
    ASSERT_EQ(info->src_addrlen, sizeof(MessengerAddress));
    EXPECT_EQ(info->dest_addr, nullptr);
    EXPECT_EQ(port_of(address_in(info->src_addr)), port);
    const Owned<fid_ep> endpoint = open(info.get());
    ASSERT_NE(endpoint, nullptr);
    EXPECT_EQ(host_of(name_of(endpoint)), "127.0.0.1");
    listens = port_of(name_of(endpoint)) == port;
  }
  EXPECT_TRUE(listens);
}

TEST_F(NamesTest, EndpointsOfOneServiceAreReachedByTheirNames) {
  const Info info = find(nullptr, std::to_string(port_of(name_of(b_.endpoint))), FI_SOURCE);
  ASSERT_NE(info, nullptr);
  const Owned<fid_ep> endpoint = open(info.get());
  ASSERT_NE(endpoint, nullptr);
  EXPECT_NE(port_of(name_of(endpoint)), port_of(name_of(b_.endpoint)));
}

// One after the other they would take longer than anything here may.
TEST_F(NamesTest, PlacesAtWhichNobodyListensAreAskedAtOnce) {
  constexpr uint32_t kDead = 100;
  const MessengerAddress alive = name_of(b_.endpoint);
  const uint16_t gone = port_of(name_of(open(info_.get())));
  std::vector<MessengerAddress> places;
  for (uint32_t i = 0; i < kDead; ++i)
    places.push_back(*place_at("127.0.1." + std::to_string(i + 1), gone));
  places.push_back(*place_at(host_of(alive), port_of(alive)));
  places.push_back(alive);
  std::vector<fi_addr_t> numbers(places.size());
  const uint64_t start_ns = now_ns();
  const int inserted =
      fi_av_insert(a_.vector.get(), places.data(), places.size(), numbers.data(), 0, nullptr);
  EXPECT_LT(now_ns() - start_ns, uint64_t{kDead} * 1'000'000'000);
  // A busy machine may need longer for a handshake than a place is asked for.
  EXPECT_GE(inserted, 1);
  for (uint32_t i = 0; i < kDead; ++i) EXPECT_EQ(numbers[i], FI_ADDR_NOTAVAIL);
  for (const size_t last : {places.size() - 2, places.size() - 1}) {
    if (numbers[last] != FI_ADDR_NOTAVAIL) expect_message(numbers[last]);
  }
}

TEST_F(NamesTest, WhatNobodyHasIsNotFound) {
  EXPECT_EQ(find("no.such.node.invalid", "1", FI_NUMERICHOST), nullptr);
  EXPECT_EQ(find("127.0.0.1", "no-such-service", 0), nullptr);
  const Info hints(fi_dupinfo(info_.get()));
  hints->src_addrlen = 16;  // that of another provider
  fi_info* found = nullptr;
  EXPECT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &found), -FI_ENODATA);
  hints->src_addrlen = sizeof(MessengerAddress);
  // Where an endpoint was: nobody answers.
  const MessengerAddress gone = name_of(open(info_.get()));
  const MessengerAddress place = *place_at("127.0.0.1", port_of(gone));
  fi_addr_t number = 0;
  EXPECT_EQ(fi_av_insert(a_.vector.get(), &place, 1, &number, 0, nullptr), 0);
  EXPECT_EQ(number, FI_ADDR_NOTAVAIL);
}

}  // namespace
}  // namespace verbena::ofi_test
