#include "src/device/port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace verbena {
namespace {

// The ports of a device, of which there is nothing else. Those on Ethernet have no GIDs.
std::vector<ibv_port_attr> ports;

ibv_port_attr port_of(uint8_t link_layer, ibv_port_state state) {
  ibv_port_attr attributes{};
  attributes.link_layer = link_layer;
  attributes.state = state;
  return attributes;
}

Result<Port> choose() {
  VerbsControl control{};
  control.query_device = [](ibv_context*, ibv_device_attr* attributes) {
    attributes->phys_port_cnt = static_cast<uint8_t>(ports.size());
    return 0;
  };
  control.query_port = [](ibv_context*, uint8_t number, ibv_port_attr* attributes) {
    *attributes = ports[number - 1u];
    return 0;
  };
  control.query_gid = [](ibv_context*, uint8_t, int, ibv_gid*) {
    errno = ENOENT;
    return -1;
  };
  control.last_error = [] { return ""; };
  ibv_device device{};
  ibv_context context{};
  context.device = &device;
  return choose_port(&context, control);
}

TEST(PortTest, TheFirstActiveOneIsChosen) {
  ports = {port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_DOWN),
           port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE),
           port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE)};
  const Result<Port> port = choose();
  ASSERT_TRUE(port.ok()) << port.status().message();
  EXPECT_EQ(port->number, 2);
}

TEST(PortTest, WithoutAnActiveOneItIsTheFirst) {
  ports = {port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_DOWN),
           port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_INIT)};
  const Result<Port> port = choose();
  ASSERT_TRUE(port.ok()) << port.status().message();
  EXPECT_EQ(port->number, 1);
  EXPECT_FALSE(port->active());
}

// Whoever read that port 1 is down would look for the fault there.
TEST(PortTest, WhatAnActiveOneLacksIsTold) {
  ports = {port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_DOWN),
           port_of(IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE)};
  EXPECT_THAT(choose().status().message(), testing::HasSubstr("the GID of port 2"));
}

TEST(PortTest, AnotherActiveOneIsAsGood) {
  ports = {port_of(IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE),
           port_of(IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE)};
  const Result<Port> port = choose();
  ASSERT_TRUE(port.ok()) << port.status().message();
  EXPECT_EQ(port->number, 2);
}

}  // namespace
}  // namespace verbena
